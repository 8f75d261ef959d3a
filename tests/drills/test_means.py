"""The means of faults that are more than a signal: a full disk, a cut network, a clock that jumps."""

import errno
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rehearsal.drills import clock, network
from rehearsal.kube.containers import CGROUPS_ENV

ROOT = Path(__file__).resolve().parents[2]
FULL_DISK = """
import errno, sys
from pathlib import Path
from rehearsal.drills import disk
if disk.why_not():
    sys.exit(77)
folder = Path(sys.argv[1])
with disk.small(folder):
    (folder / "kept").write_text("kept")
    disk.fill(folder)
    try:
        (folder / "one").write_bytes(bytes(8192))
    except OSError as error:
        print(errno.errorcode[error.errno])
    disk.free(folder)
    (folder / "two").write_text("two")
print(sorted(path.name for path in folder.iterdir() if path.stat().st_size))
"""
TALKER = """
import os, socket, sys, time
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
talk = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
while True:
    talk.sendall(b"x")
    time.sleep(0.02)
"""
TELL_TIME = """
import logging, time
logging.basicConfig(format="%(asctime)s", datefmt="%Y")  # by a function of `time` that its class holds
print(time.time(), time.time_ns() / 1e9, time.strftime("%Y", time.gmtime()))
logging.warning("")
"""


def python(code: str, *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def read_on(connection: socket.socket) -> None:
    """What was on its way still comes."""
    while connection.recv(1000):
        continue


def test_a_full_disk_is_a_real_one_and_leaves_what_was_written(tmp_path):
    done = python(FULL_DISK, tmp_path / "checkpoints")
    if done.returncode == 77:
        pytest.skip("file systems cannot be mounted here")
    assert done.stdout.splitlines() == [errno.errorcode[errno.ENOSPC], "['kept', 'two']"], done.stderr
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["kept", "one", "two"]


def test_a_cut_pod_is_heard_no_more_over_a_connection_that_was_open():
    with network.cuttable() as why_not:
        if why_not:
            pytest.skip(why_not)
        group = Path(os.environ[CGROUPS_ENV]) / "pod"
        group.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            talker = subprocess.Popen([sys.executable, "-c", TALKER, str(group), str(port)])
            try:
                listening, _ = server.accept()
                listening.settimeout(10)
                assert listening.recv(10)
                network.cut("pod")
                listening.settimeout(0.5)
                with pytest.raises(TimeoutError):
                    read_on(listening)
                assert talker.poll() is None
            finally:
                talker.kill()
                talker.wait()
    assert not group.parent.exists()


def test_a_clock_jumps_for_one_module_and_its_files_are_of_another_time(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for name in ("lease.json", "checkpoints/latest.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "tell.py").write_text(TELL_TIME)
    clock.jump(tmp_path, 40 * 365 * 86_400)
    clock.date_files(tmp_path, 40 * 365 * 86_400)
    command = [sys.executable, "-m", clock.__name__, str(tmp_path / clock.FILE), "tell"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    told = [*done.stdout.split(), done.stderr]
    assert float(told[0]) - time.time() == pytest.approx(40 * 365 * 86_400, abs=30)
    assert float(told[1]) - float(told[0]) == pytest.approx(0, abs=1)
    assert all(int(year) - time.gmtime().tm_year in (39, 40) for year in told[2:])
    dated = [(tmp_path / name).stat().st_mtime for name in ("lease.json", "checkpoints/latest.json")]
    assert max(dated) < time.time() - 39 * 365 * 86_400
