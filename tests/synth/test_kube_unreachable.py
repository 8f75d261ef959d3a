"""A Kubernetes API that does not answer: waited for, named, no obstacle to undoing a first apply."""

import json
import socket
import time

import pytest

from stacks.handlers import kube_apply, kube_client
from tests.synth.test_handlers import CONTEXT, _event, replies

__all__ = ["replies"]
MANIFEST = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
PROPERTIES = {"Cluster": "skypod-paper", "Manifests": json.dumps([MANIFEST])}


@pytest.fixture
def endpoint(monkeypatch) -> str:
    """An address where nobody listens, as that of the cluster; waits take no time."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"

    def connect(client, cluster):
        client._cluster, client._endpoint, client._token, client._tls = cluster, address, "t", None
        client._resources = {}

    monkeypatch.setattr(kube_client.KubeClient, "__init__", connect)
    monkeypatch.setattr(kube_apply, "_POLL_S", 0.01)
    monkeypatch.setattr(kube_apply, "_ACCESS_PATIENCE_S", 0.05)
    return address


@pytest.mark.parametrize("kind", ["Create", "Delete"])
def test_it_is_named_with_its_address(kind, endpoint, replies):
    kube_apply.handler(_event(kind, PROPERTIES, replies.url), CONTEXT)
    answer = replies.received[-1]
    assert answer["Status"] == "FAILED"
    for said in ("ConfigMap settings", "cluster skypod-paper", endpoint, "refused", "describe-cluster"):
        assert said in answer["Reason"]


@pytest.mark.parametrize("kind", ["Create", "Delete"])
@pytest.mark.parametrize("lost", [ConnectionRefusedError, TimeoutError, "503"])
def test_one_that_comes_back_is_waited_for(kind, lost, endpoint, replies, monkeypatch):
    asked = []

    def urlopen(*_, **__):
        asked.append(time.monotonic())
        if len(asked) < 3:
            raise kube_client.ApiError(503, "busy") if lost == "503" else lost("gone")
        raise kube_client.ApiError(404, "the API server answers")

    monkeypatch.setattr(kube_apply, "_ACCESS_PATIENCE_S", 60)
    monkeypatch.setattr(kube_client.urllib.request, "urlopen", urlopen)
    monkeypatch.setattr("stacks.handlers.reply._send", lambda _, body: replies.received.append(body))
    kube_apply.handler(_event(kind, PROPERTIES, replies.url), CONTEXT)
    assert len(asked) >= 3
    assert "does not answer" not in replies.received[-1].get("Reason", "")


def test_the_rollback_of_a_first_apply_does_not_wait_for_it(endpoint, replies, monkeypatch):
    monkeypatch.setattr(kube_apply, "_ACCESS_PATIENCE_S", 60)
    event = _event("Delete", PROPERTIES, replies.url) | {"PhysicalResourceId": "failed-1"}
    began = time.monotonic()
    kube_apply.handler(event, CONTEXT)
    assert replies.received[-1]["Status"] == "SUCCESS", replies.received[-1]
    assert time.monotonic() - began < 30
