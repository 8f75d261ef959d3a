"""What a failed run says of itself."""

import pytest
import ray
from ray.exceptions import RayTaskError

from training import run


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
        run.explain(error.as_instanceof_cause())
        == "RuntimeError: Connection closed by peer (Ray nodes that died: b)"
    )


def test_a_long_text_keeps_both_ends_and_needs_no_cluster(nodes):
    nodes(no_cluster)
    text = run.explain(ValueError("begin" + "." * 5000 + "end"))
    assert text.startswith("ValueError: begin")
    assert text.endswith("end")
    assert len(text) < 2100
