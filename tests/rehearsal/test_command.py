"""`skypod rehearse` before it starts anything: each trouble is said, nothing is begun."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rehearsal import preflight
from rehearsal.command import _overrides
from rehearsal.substrate import MARK, Folders, end_survivors, free_ports, survivors
from training.errors import ConfigError, SubstrateError

ROOT = Path(__file__).resolve().parents[2]


def skypod(*arguments: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "cdk_app", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **env},
        timeout=60,
    )


def test_help_lists_the_commands_without_loading_them():
    out = skypod("--help")
    assert out.returncode == 0
    assert "rehearse" in out.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--recipe", "smoek"], "smoek.toml does not exist"),
        (["--recipe", "smoke", "--set", "rollout.temprature=1"], "did you mean 'temperature'"),
        (
            ["--recipe", "smoke", "--set", "optimization.mini_batch_mazes=4"],
            "cannot be divided among 6 ranks",
        ),
        (["--recipe", "smoke", "--set", "seed"], "not KEY=VALUE"),
        (["--environment", "papre"], "papre.toml does not exist"),
        (["--recipe", "smoke", "--run", "../escape"], "run id"),
    ],
)
def test_a_wrong_argument_ends_with_code_2_and_a_remedy(arguments, said):
    out = skypod("rehearse", *arguments)
    assert (out.returncode, said in out.stderr) == (2, True), out.stderr
    assert "Traceback" not in out.stderr


def test_without_node_the_remedy_is_to_install_it(tmp_path):
    out = skypod("rehearse", "--recipe", "smoke", PATH=str(tmp_path))
    assert out.returncode == 3
    assert "Node.js is missing" in out.stderr
    assert "install Node.js 20" in out.stderr


def test_overrides_are_read_as_toml_values():
    assert _overrides(("a.b=1", "c=1e-3", "d=true", "e=word", 'f="1"')) == {
        "a.b": 1,
        "c": 1e-3,
        "d": True,
        "e": "word",
        "f": "1",
    }


def test_a_second_rehearsal_names_the_first(tmp_path):
    holder = (tmp_path / "lock").open("w+")
    fcntl.flock(holder, fcntl.LOCK_EX)
    holder.write("4711")
    holder.flush()
    with pytest.raises(SubstrateError, match="process 4711"), preflight.only_one(tmp_path):
        pass
    holder.close()
    with preflight.only_one(tmp_path):
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_too_little_memory_is_said_with_numbers(monkeypatch):
    monkeypatch.setattr(preflight, "available_bytes", lambda: 2 * 2**30)
    with pytest.raises(SubstrateError, match=r"only 2\.0 GiB of memory are free"):
        preflight.check(ROOT, Path(sys.executable))


def test_free_ports_differ():
    assert len(set(free_ports(20))) == 20


def test_processes_of_a_rehearsal_are_found_by_their_mark_and_ended():
    run = f"test-{os.getpid()}"
    child = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: run})
    try:
        assert [p.pid for p in survivors(run)] == [child.pid]
        assert end_survivors(run, patience_s=0) == ["sleep 60"]
        assert child.wait(timeout=10) == -9
        assert survivors(run) == []
    finally:
        child.kill()


def test_run_folders_are_on_the_shared_file_system(tmp_path):
    folders = Folders(tmp_path)
    folders.prepare()
    folders.prepare()
    (folders.runs / "one").mkdir()
    assert (folders.shared / "runs" / "one").is_dir()


def test_run_ids_are_plain_names():
    from rehearsal.command import run_name

    assert run_name("a-1.b") == "a-1.b"
    for bad in ("", "..", "a/b", "-x", "a b"):
        with pytest.raises(ConfigError, match="run id"):
            run_name(bad)
