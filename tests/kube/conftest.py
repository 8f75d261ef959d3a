import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from kubernetes import client

from cdk_app import kube
from rehearsal.kube.process import KubeStandIn
from rehearsal.substrate import free_ports
from tests.kube import sts as fake_sts

CLUSTER = "skypod-test"
PROJECT = Path(__file__).parents[2]


class Session(boto3.Session):
    """Like the emulator's sessions: every client talks to one address."""

    def __init__(self, url: str):
        super().__init__(fake_sts.KEY, fake_sts.SECRET, region_name=fake_sts.REGION)
        self._url = url

    def client(self, name: str, **settings: Any):
        return super().client(name, endpoint_url=self._url, config=Config(proxies={}), **settings)


def eventually(condition: Callable[[], Any], timeout_s: float = 15.0) -> Any:
    """The first true value of `condition`, or its last one after the deadline."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


def crds_dir() -> Path | None:
    """KubeRay's CRD files, where they are at hand (SKYPOD_SHARED_DIR names the folder that holds crds/)."""
    shared = os.environ.get("SKYPOD_SHARED_DIR")
    folder = (Path(shared) if shared else PROJECT.parent / "shared") / "crds"
    return folder if folder.is_dir() else None


def with_mark(uid: str) -> list[int]:
    """Processes that carry a pod's uid in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and uid.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="session")
def sts() -> Iterator[fake_sts.Sts]:
    server = fake_sts.Sts()
    yield server
    server.stop()


def make_stand_in(folder: Path, sts: fake_sts.Sts, python: str = sys.executable) -> KubeStandIn:
    return KubeStandIn(
        folder / "kube",
        port=free_ports(1)[0],
        train_python=Path(python),
        shared_dir=folder / "shared",
        aws_url=sts.url,
        crds_dir=crds_dir(),
        cluster_name=CLUSTER,
    )


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory, sts: fake_sts.Sts) -> Iterator[KubeStandIn]:
    standin = make_stand_in(tmp_path_factory.mktemp("kube"), sts)
    standin.start(60)
    yield standin
    standin.stop()


def connect(stand_in: KubeStandIn, sts: fake_sts.Sts) -> client.ApiClient:
    return kube.connect_to(Session(sts.url), CLUSTER, stand_in.endpoint, stand_in.ca_pem.read_bytes())


@pytest.fixture(scope="session")
def api(stand_in: KubeStandIn, sts: fake_sts.Sts) -> client.ApiClient:
    return connect(stand_in, sts)


@pytest.fixture
def core(api: client.ApiClient) -> client.CoreV1Api:
    return client.CoreV1Api(api)


@pytest.fixture
def namespace(core: client.CoreV1Api, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own; deleted afterwards with all that is in it."""
    name = f"t-{abs(hash(request.node.name)) % 10**8}"
    core.create_namespace({"metadata": {"name": name}})
    yield name
    core.delete_namespace(name)
    assert eventually(lambda: name not in [n.metadata.name for n in core.list_namespace().items], 30)
