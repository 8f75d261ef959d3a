import json

import numpy as np
import pytest

from serving import probe
from serving.client import ChatPolicy
from tests.serving.scripted_server import ScriptedServer
from training.errors import DataError
from training.evaluate import Conversation

CANARIES = [Conversation(f"maze{i}/0", np.full((16, 16, 3), i, np.uint8)) for i in range(3)]


@pytest.fixture
def served():
    """Base and adapter give the same two tokens; the adapter's log-probabilities are 0.05 higher."""
    scripts = {"base": lambda pictures, answers: "x", "maze": lambda pictures, answers: "x"}
    with ScriptedServer(scripts) as server:
        server.logprob = lambda model, place: -0.30 if model == "base" else -0.25
        with ChatPolicy(server.url, "base") as base, ChatPolicy(server.url, "maze") as adapter:
            yield server, base, adapter


def reference(key: str = "maze1/0", logprobs=(-0.25, -0.25), token_ids=(1, 2)) -> probe.Reference:
    return probe.Reference(key, token_ids, logprobs)


def test_an_adapter_that_works_passes(served):
    _, base, adapter = served
    found = probe.run(base, adapter, CANARIES, [reference(logprobs=(-0.25, -0.25001))])
    assert found.passed
    assert found.shift == pytest.approx(0.05)
    assert found.gap == pytest.approx(1e-5)
    assert json.loads(json.dumps(found.to_json()))["passed"] is True
    found.require()


def test_an_adapter_without_effect_fails(served):
    server, base, adapter = served
    server.logprob = lambda model, place: -0.3
    found = probe.run(base, adapter, CANARIES)
    assert found.gap is None
    with pytest.raises(DataError, match="answers like the base"):
        found.require()


def test_other_weights_than_the_trainers_fail(served):
    _, base, adapter = served
    found = probe.run(base, adapter, CANARIES, [reference(), reference("maze2/0", (-0.25, -0.26))])
    with pytest.raises(DataError, match=r"differ from the trainer's by 1\.0e-02"):
        found.require()
    assert probe.run(base, adapter, CANARIES, [reference(logprobs=(-0.25, -0.26))], tolerance=0.1).passed


def test_other_tokens_than_the_trainers_fail(served):
    _, base, adapter = served
    found = probe.run(base, adapter, CANARIES, [reference(token_ids=(7, 2))])
    assert "canary maze1/0: tokens [1, 2], the trainer has [7, 2]" in found.failures


def test_other_answers_count_as_a_shift(served):
    server, base, adapter = served
    server.logprob = lambda model, place: -0.3
    server.models["maze"] = lambda pictures, answers: "another"
    assert probe.run(base, adapter, CANARIES).shift == pytest.approx(2.7)


def test_base_and_adapter_are_never_asked_at_the_same_time(served):
    server, base, adapter = served
    probe.run(base, adapter, CANARIES)
    assert [request["model"] for request in server.requests] == ["base"] * 3 + ["maze"] * 3


def test_references_are_read_and_checked(tmp_path, served):
    _, base, adapter = served
    path = tmp_path / "references.json"
    path.write_text(json.dumps([{"key": "maze1/0", "token_ids": [1, 2], "logprobs": [-0.25, -0.25]}]))
    assert probe.read_references(path) == [reference()]
    path.write_text(json.dumps([{"key": "maze1/0", "token_ids": [1, 2], "logprobs": [-0.25]}]))
    with pytest.raises(DataError, match="without one log-probability"):
        probe.read_references(path)
    path.write_text("{")
    with pytest.raises(DataError, match="no reference log-probabilities"):
        probe.read_references(path)
    with pytest.raises(DataError, match="no canary"):
        probe.run(base, adapter, CANARIES, [reference("elsewhere/0")])
    with pytest.raises(DataError, match="needs canaries"):
        probe.run(base, adapter, [])
