"""`skypod rehearse` before it starts anything: each trouble is said, nothing is begun."""

import errno
import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from cdk_app import command, settings
from rehearsal import command as rehearsal_command
from rehearsal import preflight, session, stop, substrate, warm
from rehearsal.session import overrides, run_name
from rehearsal.substrate import MARK, Folders, end_survivors, free_ports, survivors
from training import jobs
from training.audits import ancestry
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
        (["--environment", "dev"], "environment 'dev' has 1 nodes with 2 GPUs"),
        (["--recipe", "smoke", "--run", "../escape"], "run id"),
    ],
)
def test_a_wrong_argument_ends_with_code_2_and_a_remedy(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["skypod", "rehearse", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    told = capsys.readouterr().err
    assert (ended.value.code, said in told) == (2, True), told


def test_a_full_disk_is_not_called_a_trouble_of_credentials(monkeypatch, capsys):
    def full(**_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as a write says it: without a file

    monkeypatch.setattr(command, "cli", full)
    with pytest.raises(SystemExit):
        command.main()
    assert "how much is free" in capsys.readouterr().err


def test_without_node_the_remedy_is_to_install_it(tmp_path):
    out = skypod("rehearse", "--recipe", "smoke", PATH=str(tmp_path))
    assert out.returncode == 3
    assert "Node.js is missing" in out.stderr
    assert "install Node.js 20" in out.stderr


def test_overrides_are_read_as_toml_values():
    assert overrides(("a.b=1", "c=1e-3", "d=true", "e=word", 'f="1"')) == {
        "a.b": 1,
        "c": 1e-3,
        "d": True,
        "e": "word",
        "f": "1",
    }


@pytest.fixture
def held(tmp_path):
    """The state folder of a checkout whose rehearsal, process 4711, runs."""
    state = tmp_path / ".rehearsal"
    state.mkdir()
    with (state / "lock").open("w+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711")
        lock.flush()
        yield state


def test_a_second_rehearsal_says_that_one_runs_before_it_looks_for_anything_else(tmp_path, held, monkeypatch):
    """The memory that it would miss is the first one's."""
    monkeypatch.setattr(session, "ROOT", tmp_path)
    monkeypatch.setattr(preflight, "available_bytes", lambda: 0)
    smoke = ROOT / "recipes" / "maze-smoke.toml"
    with pytest.raises(SubstrateError, match="process 4711"):
        rehearsal_command.rehearse.main(["--recipe", str(smoke)], standalone_mode=False)


def test_the_base_is_not_made_anew_under_a_rehearsal(tmp_path, held):
    base = tmp_path / ".rehearsal" / "shared" / "models" / warm.QUICK
    base.mkdir(parents=True)
    with pytest.raises(SubstrateError, match="process 4711"):
        warm.renew(Folders(tmp_path), print)
    assert base.is_dir()


def make(root: Path, target: str) -> subprocess.CompletedProcess:
    (root / "scripts").mkdir(exist_ok=True)
    for name in ("Makefile", "scripts/require_idle.sh", "scripts/environment.sh"):
        shutil.copy(ROOT / name, root / name)
    return subprocess.run(["make", target], cwd=root, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("target", ["clean", ".venv/.complete"])
def test_make_removes_nothing_under_a_rehearsal(tmp_path, held, target):
    (tmp_path / ".venv").mkdir()
    (tmp_path / "pyproject.toml").touch()
    refused = make(tmp_path, target)
    assert refused.returncode != 0
    assert "process 4711" in refused.stderr
    assert "make stop" in refused.stderr
    assert (tmp_path / ".venv").is_dir()


def test_make_clean_cleans_where_none_runs(tmp_path):
    (tmp_path / ".rehearsal").mkdir()
    (tmp_path / ".rehearsal" / "lock").write_text("4711")
    assert make(tmp_path, "clean").returncode == 0
    assert not (tmp_path / ".rehearsal").exists()


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


@pytest.mark.parametrize(
    "left",
    [b"", pytest.param(b"%d" % os.getpid(), id="own"), b"-1", b"garbage", b"\xff\xfe"],
)
def test_stop_signals_nobody_when_nothing_holds_the_lock(tmp_path, left):
    """Whatever an earlier rehearsal left in the lock file, this process's own number included."""
    (tmp_path / "lock").write_bytes(left)
    assert stop.end(tmp_path, patience_s=1) == "no rehearsal of this checkout is running"


def test_stop_ends_the_holder_and_waits_until_it_let_go(tmp_path):
    code = (
        "import sys, time, pathlib\n"
        "from rehearsal import preflight\n"
        "from rehearsal.interrupts import interruptible\n"
        "with preflight.only_one(pathlib.Path(sys.argv[1])), interruptible():\n"
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


@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_ends_a_rehearsal_in_order_unless_nohup_keeps_it(tmp_path, ignored):
    """Also what it still prints while it cleans up must not end it half-way."""
    code = (
        "import fcntl, pathlib, signal, sys, termios, time\n"
        "from rehearsal.interrupts import interruptible, uninterrupted\n"
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if ignored else 'SIG_DFL'})\n"
        "with interruptible():\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(1)\n"
        "        pathlib.Path(sys.argv[1]).write_text('kept on')\n"
        "    except KeyboardInterrupt:\n"
        "        with uninterrupted():\n"
        "            print('cleaning', flush=True)\n"
        "            pathlib.Path(sys.argv[1]).write_text('cleaned')\n"
    )
    said = tmp_path / "said"
    terminal, inside = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(said)],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        cwd=ROOT,
        start_new_session=True,
    )
    os.close(inside)
    heard = b""
    while not heard.endswith(b"ready\r\n"):
        heard += os.read(terminal, 100)
    os.close(terminal)
    process.wait(20)
    assert said.read_text() == ("kept on" if ignored else "cleaned")


def test_a_path_with_a_space_is_refused_before_ray_chokes_on_it(tmp_path):
    with pytest.raises(SubstrateError, match="white space"):
        preflight.check(tmp_path / "a b", Path(sys.executable))


def test_a_damaged_base_is_made_anew_and_a_foreign_one_never_touched(tmp_path):
    base = tmp_path / warm.QUICK
    base.mkdir()
    (base / "model.safetensors").write_bytes(b"weights")
    ancestry.declare(base, [])
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
        "from rehearsal.session import own_environment\n"
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


def test_a_link_that_an_earlier_place_of_the_checkout_left_is_made_again(tmp_path):
    folders = Folders(tmp_path)
    folders.shared.mkdir(parents=True)
    link = folders.shared / "runs"
    link.symlink_to("/nowhere/runs")
    folders.prepare()
    assert link.resolve() == folders.runs
    link.unlink()
    link.mkdir()
    with pytest.raises(SubstrateError, match="is no link"):
        folders.prepare()


def test_the_emulated_aws_has_the_region_and_account_of_the_environment(tmp_path, monkeypatch):
    for part in (substrate.EmulatedAws, substrate.KubeStandIn):
        monkeypatch.setattr(part, "start", lambda self: None)
        monkeypatch.setattr(part, "stop", lambda self: None)
    elsewhere = settings.load(
        "paper",
        {
            "region": "eu-central-1",
            "network.zones": ["eu-central-1a", "eu-central-1b"],
            "account": "210987654321",
        },
    )
    folders = Folders(tmp_path)
    folders.prepare()
    with substrate.running(folders, elsewhere, None) as parts:
        env = parts.aws.env
    assert (env["CDK_DEFAULT_REGION"], env["CDK_DEFAULT_ACCOUNT"]) == ("eu-central-1", "210987654321")


def test_a_settings_file_is_found_from_wherever_the_command_was_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert settings.absolute("mine.toml") == str(tmp_path / "mine.toml")
    assert settings.absolute("paper") == "paper"


def test_an_address_is_printed_in_one_line_however_narrow_the_terminal(monkeypatch, tmp_path):
    model = "maze:" + "x" * 60
    r = SimpleNamespace(
        substrate=SimpleNamespace(
            aws=SimpleNamespace(
                env={"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "1" * 12}
            ),
            kube=SimpleNamespace(endpoint="https://127.0.0.1:2"),
        ),
        ray=SimpleNamespace(url="http://127.0.0.1:3"),
        serving=SimpleNamespace(destination=SimpleNamespace(url="http://127.0.0.1:4")),
        serving_state=tmp_path / "serving of a run",
        served_model=model,
        folders=Folders(tmp_path / ("y" * 60)),
    )
    r.folders.state.mkdir(parents=True)
    r.folders.shell.write_text("export AWS_REGION=us-west-2\n")
    monkeypatch.setattr(signal, "pause", lambda: time.sleep(0.05))
    out = io.StringIO()
    assert 0.05 <= rehearsal_command._keep(r, Console(file=out, width=20)) < 5
    lines = out.getvalue().splitlines()
    assert any(line.endswith(model) for line in lines)
    assert any(str(r.folders.shell) in line for line in lines)
    told = r.folders.shell.read_text().splitlines()
    assert told[1:] == [f"export SKYPOD_SERVING='{r.serving_state}'"]


def test_run_ids_are_plain_names():
    assert run_name("a-1.b") == "a-1.b"
    for bad in ("", "..", "a/b", "-x", "a b"):
        with pytest.raises(ConfigError, match="run id"):
            run_name(bad)
