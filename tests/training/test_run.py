"""What a failed run says of itself, and what a replaced one does not."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import RayTaskError

from training import attempts, events, lease, recipe, run
from training.errors import DataError


def no_cluster():
    raise RuntimeError("Ray has not been started yet")


@pytest.fixture
def nodes(monkeypatch):
    """Sets what the cluster says of its nodes."""
    return lambda answer: monkeypatch.setattr(ray, "nodes", answer)


def test_the_cause_of_a_remote_error_is_told_without_its_traceback(nodes):
    nodes(lambda: [{"NodeName": "a", "Alive": True}, {"NodeName": "b", "Alive": False}])
    cause = RuntimeError("Connection closed by peer")
    error = RayTaskError("forward", "Traceback (most recent call last):\n  File ...", cause)
    assert (
        run.explain(error.as_instanceof_cause(), sorted(run.dead_nodes()))
        == "RuntimeError: Connection closed by peer (Ray nodes that died: b)"
    )


def test_a_long_text_keeps_both_ends_and_needs_no_cluster(nodes):
    nodes(no_cluster)
    text = run.explain(ValueError("begin" + "." * 5000 + "end"), sorted(run.dead_nodes()))
    assert text.startswith("ValueError: begin")
    assert text.endswith("end")
    assert len(text) < 2100


def test_the_chain_of_causes_is_told_by_class_and_error_number():
    inner = OSError(28, "No space left on device")
    try:
        try:
            raise RayTaskError("save", "Traceback", inner).as_instanceof_cause()
        except OSError as error:
            raise DataError("the checkpoint was not written", "make room") from error
    except DataError as error:
        told = run.describe(run.causes(error))
    assert told["message"].startswith("DataError: the checkpoint was not written")
    assert told["remedy"] == "make room"
    assert {"training.errors.DataError", "ray.exceptions.RayTaskError", "builtins.OSError"} <= set(
        told["types"]
    )
    assert told["errnos"] == ["ENOSPC"]


def driver(run_dir, token: int, monkeypatch, outcome):
    """Run an attempt whose training is `outcome()`; the exit status."""
    fake = SimpleNamespace(run=lambda *args, fence: outcome(fence))
    monkeypatch.setitem(sys.modules, "training.skyrl", SimpleNamespace(experiment=fake))
    monkeypatch.setitem(sys.modules, "training.skyrl.experiment", fake)
    monkeypatch.setitem(sys.modules, "training.skyrl.backend", SimpleNamespace(CUDA=None))
    monkeypatch.setattr(run, "_join", lambda *_: None)
    monkeypatch.setenv(run.SHARED_VARIABLE, str(run_dir))
    with pytest.raises(SystemExit) as ended:
        run.main(run_dir, SimpleNamespace(name="cpu"), token)
    return ended.value.code


@pytest.fixture
def run_dir(tmp_path):
    chosen = recipe.load(Path(__file__).parents[2] / "recipes" / "maze-smoke.toml")
    recipe.write_resolved(chosen, tmp_path / "recipe.json")
    (tmp_path / "run.json").write_text('{"attempts": [], "checkpoints": []}')
    lease.take(tmp_path, "supervisor", 0)
    return tmp_path


def test_a_failed_attempt_leaves_an_event_of_its_own(run_dir, monkeypatch):
    token = lease.next_token(run_dir, "supervisor")
    attempts.note(run_dir, token, job="r-1")

    def fail(fence):
        raise ValueError("wrong")

    assert driver(run_dir, token, monkeypatch, fail) == 1
    failed = events.read(run_dir / "events.jsonl")[-1]
    assert (failed["event"], failed["attempt"], failed["message"]) == ("failed", 1, "ValueError: wrong")
    (entry,) = attempts.read(run_dir)
    assert (entry["job"], entry["backend"], entry["attempt"]) == ("r-1", "cpu", 1)
    assert "python" in entry


def test_a_fenced_driver_exits_without_another_word(run_dir, monkeypatch):
    token = lease.next_token(run_dir, "supervisor")
    before = {}

    def publish_late(fence):
        lease.next_token(run_dir, "supervisor")
        before.update({path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()})
        with fence():
            raise AssertionError("published")

    assert driver(run_dir, token, monkeypatch, publish_late) == 5
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


def test_a_driver_that_is_late_from_its_start_leaves_no_trace(run_dir, monkeypatch):
    old = lease.next_token(run_dir, "supervisor")
    lease.next_token(run_dir, "supervisor")
    assert driver(run_dir, old, monkeypatch, None) == 5
    assert attempts.read(run_dir) == []
    assert events.read(run_dir / "events.jsonl") == []


def test_a_line_torn_by_a_kill_costs_no_other(tmp_path):
    path = tmp_path / "events.jsonl"
    events.EventLog(path, 1).emit("stage", name="engines")
    with path.open("a") as file:
        file.write('{"time": 1, "eve')
    events.EventLog(path, 2).emit("stage", name="models")
    assert [event["name"] for event in events.read(path)] == ["engines", "models"]
