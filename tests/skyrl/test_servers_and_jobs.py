"""SkyRL's own vLLM servers on CPU, in a job whose submitter is killed and that is followed again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kubernetes import client

from cdk_app import cluster
from rehearsal.kube.process import KubeStandIn
from tests.kube import sts as fake_sts
from tests.kube.conftest import connect, crds_dir
from tests.rehearsal.sockets import exposed
from training import jobs, prepare, recipe
from training.jobs import Endpoint

pytestmark = [pytest.mark.ray, pytest.mark.skyrl, pytest.mark.vllm]
ROOT = Path(__file__).resolve().parents[2]
TRAIN_PYTHON = ROOT / ".venv-train" / "bin" / "python"
NAME, NAMESPACE = "servers", "skypod"
MARK = f"test-servers-{os.getpid()}"
OVERRIDES = {
    "topology.worker_nodes": 1,
    "rollout.engine": "skyrl-servers",
    "rollout.engines": 2,
    "optimization.mazes_per_step": 2,
    "optimization.mini_batch_mazes": 2,
    "data.train_mazes": 8,
    "data.dev_mazes": 2,
    "data.test_512_mazes": 1,
    "data.ood_mazes": 3,
    "environment.max_turns": 7,
    "gate.min_solve_rate": 0.5,
}
SUBMIT_AND_WAIT = """
import sys
from training import jobs
endpoint = jobs.Endpoint(sys.argv[1], sys.stdin.readline().strip())
job = jobs.submit(endpoint, run=sys.argv[2], entrypoint=sys.argv[3])
print(job, flush=True)
jobs.follow(endpoint, job)
"""


def ray_cluster() -> dict:
    def template(cpus: str, gpus: int) -> dict:
        amounts = {"cpu": cpus, "memory": "4Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
        container = {
            "name": "ray",
            "image": "train",
            "resources": {"limits": amounts, "requests": amounts},
            "env": [{"name": "SKYPOD_SHARED", "value": "/shared"}],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
        }
        volume = {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}
        return {"spec": {"containers": [container], "volumes": [volume]}}

    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "rayVersion": "2.57.0",
            "authOptions": {"mode": "token"},
            "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": template("2", 0)},
            "workerGroupSpecs": [
                {
                    "groupName": "gpu",
                    "replicas": 1,
                    "minReplicas": 1,
                    "maxReplicas": 1,
                    "rayStartParams": {},
                    "template": template("8", 2),
                }
            ],
        },
    }


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    base = folder / "models" / "maze-tiny-smoke"
    command = [str(TRAIN_PYTHON), "-m", "rehearsal.tiny.model", "--out", str(base), "--seed", "0"]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    chosen = recipe.load(ROOT / "recipes" / "maze-smoke.toml", OVERRIDES)
    prepare.prepare(chosen, folder / "runs" / "servers", base_dir=base, image="test")
    return folder


@pytest.fixture(scope="module")
def endpoint(shared, tmp_path_factory) -> Endpoint:
    state = tmp_path_factory.mktemp("state")
    sts = fake_sts.Sts()
    os.environ["SKYPOD_REHEARSAL"] = MARK
    stand_in = KubeStandIn(
        state / "kube",
        port=jobs_port(),
        train_python=TRAIN_PYTHON,
        shared_dir=shared,
        aws_url=sts.url,
        crds_dir=crds_dir(),
        cluster_name="skypod-test",
    )
    try:
        stand_in.start(60)
        api = connect(stand_in, sts)
        client.CoreV1Api(api).create_namespace({"metadata": {"name": NAMESPACE}})
        cluster.apply(api, [claim()])
        cluster.up(api, ray_cluster(), timeout_s=120)
        found = cluster.dashboard(api, NAMESPACE, NAME)
        yield Endpoint(found.url, found.token)
    finally:
        stand_in.stop()
        sts.stop()
        del os.environ["SKYPOD_REHEARSAL"]


def jobs_port() -> int:
    from rehearsal.substrate import free_ports

    return free_ports(1)[0]


def claim() -> dict:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared", "namespace": NAMESPACE},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


@pytest.fixture(scope="module")
def events(endpoint, shared) -> list[dict]:
    """The job's events, collected by a follower that came after the submitter had been killed."""
    entrypoint = f"python -m rehearsal.cpu.job {shared / 'runs' / 'servers'}"
    command = [sys.executable, "-c", SUBMIT_AND_WAIT, endpoint.url, "servers", entrypoint]
    submitter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    submitter.stdin.write(endpoint.token + "\n")
    submitter.stdin.flush()
    job = submitter.stdout.readline().strip()
    assert job == "servers-1"
    submitter.send_signal(signal.SIGKILL)
    submitter.wait()

    assert jobs.newest(endpoint, "servers") == job
    found: list[dict] = []

    def note(event: dict) -> None:
        found.append(event | {"exposed": exposed(MARK) if event["event"] == "step" else set()})

    outcome = jobs.follow(endpoint, job, note)
    assert outcome.succeeded, outcome.log[-3000:]
    return found


def test_the_job_outlives_its_submitter_and_is_followed_from_its_start(events):
    kinds = [event["event"] for event in events]
    assert kinds[0] == "stage"
    assert kinds[-1] == "finished"


def test_skyrls_own_servers_serve_the_adapter_that_is_trained(events):
    steps = [event for event in events if event["event"] == "step"]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(0 < step["logprob_gap_mean"] < 1e-4 for step in steps)


def test_every_request_is_counted_with_the_pictures_that_the_trainer_sees(events):
    steps = [event for event in events if event["event"] == "step"]
    assert all(step["image_tokens_engine"] == step["image_tokens_trainer"] > 0 for step in steps)


def test_they_listen_on_loopback_only(events):
    assert [event["exposed"] for event in events if event["event"] == "step"] == [set(), set()]


def test_an_unknown_run_is_said_to_be_unknown(endpoint):
    from training.errors import SubstrateError

    with pytest.raises(SubstrateError, match="no job of run 'nobody'"):
        jobs.newest(endpoint, "nobody")
