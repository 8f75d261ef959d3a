"""`skypod rehearse` before it starts anything: each trouble is said, nothing is begun."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdk_app import command
from rehearsal import preflight, stop, warm
from rehearsal.command import _overrides
from rehearsal.substrate import MARK, Folders, end_survivors, free_ports, survivors
from training import jobs
from training.errors import ConfigError, SubstrateError
from training.files import tree_digest, write_json

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
        (["--recipe", "smoke", "--set", "name.x=1"], "'name' is no table"),
        (["--recipe", "smoke", "--set", "policy.base_model='/etc'"], "policy.base_model"),
        (["--recipe", "smoke", "--set", "policy.base_model='a/../b'"], "policy.base_model"),
        (["--environment", "papre"], "papre.toml does not exist"),
        (["--recipe", "smoke", "--run", "../escape"], "run id"),
    ],
)
def test_a_wrong_argument_ends_with_code_2_and_a_remedy(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["skypod", "rehearse", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    told = capsys.readouterr().err
    assert (ended.value.code, said in told) == (2, True), told


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


@pytest.mark.parametrize("left", [b"", b"%d" % os.getpid(), b"-1", b"garbage", b"\xff\xfe"])
def test_stop_signals_nobody_when_nothing_holds_the_lock(tmp_path, left):
    """Whatever an earlier rehearsal left in the lock file, this process's own number included."""
    (tmp_path / "lock").write_bytes(left)
    assert stop.end(tmp_path, patience_s=1) == "no rehearsal of this checkout is running"


def test_stop_ends_the_holder_and_waits_until_it_let_go(tmp_path):
    code = (
        "import sys, time, pathlib\n"
        "from rehearsal import preflight\n"
        "from rehearsal.command import _interruptible\n"
        "with preflight.only_one(pathlib.Path(sys.argv[1])), _interruptible():\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        assert stop.end(tmp_path, patience_s=20) == f"rehearsal {holder.pid} has ended"
        assert holder.wait(5) != 0
        assert not preflight.is_running(tmp_path)
    finally:
        holder.kill()


def test_a_path_with_a_space_is_refused_before_ray_chokes_on_it(tmp_path):
    with pytest.raises(SubstrateError, match="white space"):
        preflight.check(tmp_path / "a b", Path(sys.executable))


def test_a_damaged_base_is_made_anew_and_a_foreign_one_never_touched(tmp_path):
    base = tmp_path / warm.QUICK
    base.mkdir()
    (base / "model.safetensors").write_bytes(b"weights")
    write_json(base / warm.RECORD, {"model_digest": tree_digest(base, without=warm.RECORD)})
    kept = warm.WarmStart(base, Path("/bin/false"), tmp_path / "log")
    with kept:
        assert kept.wait(print).startswith("cached")
    (base / "model.safetensors").write_bytes(b"torn")
    again = warm.WarmStart(base, Path("/bin/false"), tmp_path / "log")
    with again, pytest.raises(SubstrateError, match=r"warm start .* failed"):
        again.wait(print)
    with pytest.raises(ConfigError, match="cannot make the base model 'qwen'"):
        warm.WarmStart(tmp_path / "qwen", Path("/bin/false"), tmp_path / "log")


def test_nothing_of_the_users_settings_reaches_a_rehearsal():
    code = (
        "import json, os\n"
        "from rehearsal.command import own_environment\n"
        "own_environment('m')\n"
        "print(json.dumps(dict(os.environ)))\n"
    )
    hostile = {"AWS_PROFILE": "x", "AWS_MAX_ATTEMPTS": "many", "RAY_ADDRESS": "y", "CDK_DEFAULT_REGION": "z"}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **hostile}
    )
    found = json.loads(out.stdout)
    assert not hostile.keys() & found.keys()
    assert found["AWS_CONFIG_FILE"] == os.devnull
    assert found["SKYPOD_REHEARSAL"] == "m"


def test_ray_cannot_send_the_token_elsewhere(monkeypatch):
    """With these variables Ray's client would prefer them to the address that it is given."""
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:9")
    with pytest.raises(SubstrateError, match=r"127\.0\.0\.1:1 does not answer") as error:
        jobs.listing(jobs.Endpoint("http://127.0.0.1:1", "secret"))
    assert "127.0.0.1:9" not in str(error.value)
    assert "secret" not in str(error.value)


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
