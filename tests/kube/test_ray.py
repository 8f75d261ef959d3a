"""RayClusters and RayServices as real processes. Slow: they start Ray nodes and a vLLM server."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest
import yaml
from kubernetes import client
from ray.job_submission import JobSubmissionClient

from cdk_app import cluster
from tests.kube.conftest import PROJECT, connect, eventually, make_stand_in, with_mark
from training.errors import SubstrateError

TRAIN_PYTHON = Path(os.environ.get("SKYPOD_TRAIN_PYTHON", PROJECT / ".venv-train" / "bin" / "python"))
needs_train = pytest.mark.skipif(
    not TRAIN_PYTHON.exists(), reason=f"no training environment at {TRAIN_PYTHON}"
)
NAMESPACE = "default"


def template(name, **limits):
    container = {
        "name": name,
        "image": "x",
        "env": [{"name": "SKYPOD_SHARED", "value": "/shared"}],
        "resources": {"limits": limits},
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    volume = {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}
    return {"spec": {"containers": [container], "volumes": [volume]}}


def ray_cluster(workers, name="skypod"):
    head = {"rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"}}
    limits = {"cpu": "40", "memory": "400Gi", "nvidia.com/gpu": "2"}
    group = {"groupName": "gpu", "replicas": workers, "minReplicas": workers, "maxReplicas": workers}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "rayVersion": "2.57.0",
            "authOptions": {"mode": "token"},
            "headGroupSpec": head | {"template": template("ray-head", cpu="60", memory="400Gi")},
            "workerGroupSpecs": [group | {"rayStartParams": {}, "template": template("worker", **limits)}],
        },
    }


def listeners(pids):
    """Addresses on which these processes listen."""
    lines = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [
        line.split()[3] for line in lines if {int(pid) for pid in re.findall(r"pid=(\d+)", line)} & set(pids)
    ]


def names_of(pids):
    names = []
    for pid in pids:
        try:
            names.append(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode())
        except OSError:
            continue
    return names


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory, sts):
    # Its own one: these tests have the training environment's Python.
    standin = make_stand_in(tmp_path_factory.mktemp("ray"), sts, str(TRAIN_PYTHON))
    standin.start(60)
    yield standin
    standin.stop()


@pytest.fixture(scope="module")
def api(stand_in, sts):
    return connect(stand_in, sts)


@needs_train
@pytest.mark.ray
def test_a_ray_cluster_comes_up_runs_jobs_heals_and_leaves_nothing(api, core, stand_in):
    told = []
    up = cluster.up(api, ray_cluster(2), 240, told.append)
    assert (up["status"]["readyWorkerReplicas"], up["status"]["desiredGPU"]) == (2, "4")
    assert told[-1] == "2 of 2 workers, head up"
    endpoint = cluster.dashboard(api, NAMESPACE, "skypod")
    pods = core.list_namespaced_pod(NAMESPACE).items
    marks = {pod.metadata.name: pod.metadata.uid for pod in pods}
    processes = [pid for uid in marks.values() for pid in with_mark(uid)]

    heard = listeners(processes)
    assert len(heard) > 10
    assert [a for a in heard if not a.startswith(("127.0.0.1:", "[::ffff:127.0.0.1]:"))] == []

    token_file = next(stand_in.state_dir.glob("pods/*/volumes/ray-token/auth_token"))
    assert (token_file.read_text(), token_file.stat().st_mode & 0o777) == (endpoint.token, 0o600)
    assert httpx.get(f"{endpoint.url}/api/version", trust_env=False).status_code == 401

    jobs = JobSubmissionClient(endpoint.url, headers=endpoint.headers)
    script = (
        "import json, os, ray; ray.init(address='auto', logging_level='ERROR', log_to_driver=False); "
        "f = ray.remote(num_gpus=1)(lambda: os.environ['SKYPOD_SHARED']); "
        "print('RESULT', json.dumps([ray.cluster_resources(), ray.get([f.remote() for _ in range(4)])]))"
    )
    job = jobs.submit_job(entrypoint=f'python -c "{script}"')
    assert eventually(lambda: jobs.get_job_status(job).is_terminal(), 90)
    result = re.search(r"RESULT (.*)", jobs.get_job_logs(job))
    resources, seen = json.loads(result[1])
    assert (resources["GPU"], resources["CPU"], seen) == (
        4,
        80,
        [str(stand_in.state_dir.parent / "shared")] * 4,
    )
    # Eighty CPUs are declared; what runs is what was asked for.
    workers = [
        name for name in names_of(pid for u in marks.values() for pid in with_mark(u)) if "ray::" in name
    ]
    assert len([name for name in workers if "Agent" not in name]) <= 8

    victim = next(name for name in marks if "worker" in name)
    for pid in with_mark(marks[victim]):
        if "raylet/raylet" in names_of([pid])[0]:
            os.kill(pid, signal.SIGKILL)
    rays = client.CustomObjectsApi(api)

    def state():
        found = rays.get_namespaced_custom_object("ray.io", "v1", NAMESPACE, "rayclusters", "skypod")
        return found["status"]["state"]

    assert eventually(lambda: state() == "unhealthy", 60)
    assert eventually(lambda: state() == "ready", 120)
    assert victim not in [pod.metadata.name for pod in core.list_namespaced_pod(NAMESPACE).items]

    every = [pod.metadata.uid for pod in core.list_namespaced_pod(NAMESPACE).items]
    cluster.down(api, NAMESPACE, "skypod", 60)
    assert eventually(lambda: not [pid for uid in every for pid in with_mark(uid)], 20)
    assert core.list_namespaced_pod(NAMESPACE).items == []


@needs_train
@pytest.mark.ray
def test_a_cluster_that_cannot_start_tells_why(api):
    broken = ray_cluster(0, name="broken")
    broken["spec"]["headGroupSpec"]["rayStartParams"]["no-such-flag"] = "1"
    with pytest.raises(SubstrateError, match="no-such-flag"):
        cluster.up(api, broken, 25)
    cluster.down(api, NAMESPACE, "broken", 30)


@needs_train
@pytest.mark.vllm
def test_a_service_answers_for_its_base_model(api, core, stand_in):
    shared = stand_in.state_dir.parent / "shared"
    build = "import sys, pathlib; from rehearsal.tiny import model; model.build(pathlib.Path(sys.argv[1]), 0)"
    subprocess.run(
        [str(TRAIN_PYTHON), "-c", build, str(shared / "tiny")],
        check=True,
        cwd=PROJECT,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
    )
    core.create_namespaced_secret(
        NAMESPACE, {"metadata": {"name": "key"}, "stringData": {"k": "open sesame"}}
    )
    replica = template("replica", cpu="4")
    replica["spec"]["containers"][0]["env"].append(
        {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}}
    )
    config = {
        "model_loading_config": {"model_id": "maze", "model_source": "/shared/tiny"},
        "engine_kwargs": {"max_model_len": 512},
    }
    application = {
        "name": "openai",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": [config]},
    }
    service = {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "serve", "namespace": NAMESPACE},
        "spec": {
            "serveConfigV2": yaml.safe_dump({"applications": [application]}),
            "rayClusterConfig": {
                "rayVersion": "2.57.0",
                "headGroupSpec": {"rayStartParams": {}, "template": replica},
            },
        },
    }
    cluster.apply(api, [service])
    cluster.served(api, NAMESPACE, "serve", 240)
    url = cluster.service_url(api, NAMESPACE, "serve")
    headers = {"Authorization": "Bearer open sesame"}
    assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 401
    models = httpx.get(f"{url}/v1/models", headers=headers, trust_env=False).json()["data"]
    assert [model["id"] for model in models] == ["maze"]
    uid = core.list_namespaced_pod(NAMESPACE).items[0].metadata.uid
    processes = with_mark(uid)
    assert all("open sesame" not in Path(f"/proc/{p}/cmdline").read_text() for p in processes)
    assert [a for a in listeners(processes) if not a.startswith("127.0.0.1:")] == []
    begun = time.monotonic()
    client.CustomObjectsApi(api).delete_namespaced_custom_object(
        "ray.io", "v1", NAMESPACE, "rayservices", "serve"
    )
    assert eventually(lambda: not with_mark(uid), 20)
    assert time.monotonic() - begun < 30
