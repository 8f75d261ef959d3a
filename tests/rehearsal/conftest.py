"""Shared pieces of the emulator tests: free loopback ports and a running emulated AWS."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.kube_api import KubeApi


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    """A Kubernetes API that trusts the emulated AWS of the same module."""
    api = KubeApi(tmp_path_factory.mktemp("kube"), f"http://127.0.0.1:{free_port()}")
    yield api
    api.close()


@pytest.fixture(scope="module")
def aws(kube: KubeApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    """An emulated AWS of the module, empty at first."""
    state: Path = tmp_path_factory.mktemp("aws")
    port = int(kube.aws_url.rpartition(":")[2])
    with EmulatedAws(state, port=port, kube_endpoint=kube.endpoint, kube_ca_pem=kube.ca_pem) as running:
        yield running
