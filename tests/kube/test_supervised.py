"""A supervisor over real Ray nodes: what is killed, hangs or is wrong, and a supervisor that is killed."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kubernetes import client

from cdk_app import cluster, settings
from stacks.manifests import supervisor as manifest
from stacks.outputs import Outputs
from tests.kube.conftest import connect, eventually, make_stand_in, with_mark
from tests.kube.test_ray import NAMESPACE, TRAIN_PYTHON, names_of, ray_cluster
from training import attempts, lease, lineage, recipe
from training.files import write_json
from training.supervisor.cluster import RayCluster
from training.supervisor.supervise import supervise

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not TRAIN_PYTHON.exists(), reason=f"no training environment at {TRAIN_PYTHON}"),
]
ROOT = Path(__file__).parents[2]
NAME = "drilled"
CHOSEN = {
    "topology.worker_nodes": 2,
    "optimization.micro_batch_episodes": 6,
    "recovery.stall_s": 30,
    "recovery.head_grace_s": 5,
    "recovery.topology_timeout_s": 400,
    "recovery.backoff_s": 0.5,
    "recovery.max_fruitless_attempts": 9,
    "recovery.lease_patience_s": 3,
}


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory, sts):
    standin = make_stand_in(tmp_path_factory.mktemp("drilled"), sts, str(TRAIN_PYTHON))
    standin.start(60)
    yield standin
    standin.stop()


@pytest.fixture(scope="module")
def api(stand_in, sts):
    api = connect(stand_in, sts)
    cluster.up(api, ray_cluster(2, NAME), 240)
    return api


@pytest.fixture
def begin(stand_in, request) -> Callable[[dict[int, str]], Path]:
    """Makes a run folder whose attempts, by token, meet what the plan says."""

    def begin(plan: dict[int, str]) -> Path:
        run_dir = stand_in.state_dir.parent / "shared" / "runs" / f"r{abs(hash(request.node.name)) % 10**6}"
        run_dir.mkdir(parents=True)
        chosen = recipe.load(ROOT / "recipes" / "maze-smoke.toml", CHOSEN)
        recipe.write_resolved(chosen, run_dir / "recipe.json")
        sections = {"recipe": chosen.model_dump(mode="json"), "attempts": [], "checkpoints": []}
        write_json(run_dir / "run.json", sections)
        write_json(run_dir / "plan.json", plan)
        return run_dir

    return begin


def see_through(api, run_dir: Path, show=lambda event: None, **keys):
    at = cluster.dashboard(api, NAMESPACE, NAME)  # of a service, whose address outlives heads
    ray = RayCluster(lambda: at, "python -m tests.kube.driver", run_dir)
    return supervise(run_dir, ray, lineage.read_recipe(run_dir), show=show, **keys)


def kill(core, kind: str, process: str) -> None:
    """SIGKILL a process of the first pod of this type (head or worker)."""
    selector = f"ray.io/cluster={NAME},ray.io/node-type={kind}"
    pod = core.list_namespaced_pod(NAMESPACE, label_selector=selector).items[0]
    for pid in with_mark(pod.metadata.uid):
        if process in "".join(names_of([pid])):
            os.kill(pid, signal.SIGKILL)


def outcomes(run_dir: Path) -> list[str]:
    return [row.get("failure", row["outcome"]) for row in attempts.read(run_dir)]


def test_a_run_survives_whatever_dies_or_hangs_and_stops_at_a_mistake(api, core, begin):
    run_dir = begin(
        {
            1: "SIGKILL",
            2: "SIGSTOP",
            3: "SIGSTOP while publishing",
            4: "wait",
            5: "wait",
            6: "wait",
            7: "code",
        }
    )
    plan = {4: "rank", 5: "raylet", 6: "head"}
    done = set()

    def interfere(event: dict) -> None:
        token = event["attempt"]
        if event["event"] != "step" or token in done or token not in plan:
            return
        done.add(token)
        match plan[token]:
            case "rank":
                os.kill(event["ranks"][0], signal.SIGKILL)
            case "raylet":
                kill(core, "worker", "raylet/raylet")
            case "head":
                kill(core, "head", "gcs_server")

    verdict = see_through(api, run_dir, interfere)
    assert outcomes(run_dir) == [
        "driver_lost",
        "stalled",
        "stalled",
        "node_lost",
        "node_lost",
        "head_lost",
        "code",
    ], [row.get("message") for row in attempts.read(run_dir)]
    assert verdict.outcome == "given up"
    assert "ValueError: a mistake" in verdict.problem
    rows = attempts.read(run_dir)
    assert [row["token"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert all(row["python"] for row in rows)
    steps = [entry["step"] for entry in lineage.read(run_dir)["checkpoints"]]
    assert steps == list(range(1, len(steps) + 1))
    assert (run_dir / "logs" / "attempt-7.log").read_text().count("a mistake")

    again = see_through(api, run_dir, resume="the mistake is corrected")
    assert again.finished
    assert lineage.read(run_dir)["adapter"]["folder"] == "adapter"


@pytest.fixture
def outputs() -> Outputs:
    fields = {name: "x" for name in Outputs.__dataclass_fields__}
    return Outputs(**fields | {"namespace": NAMESPACE, "region": "us-west-2"})


def test_the_job_of_a_killed_supervisor_goes_on_and_its_replacement_follows_it(api, core, begin, outputs):
    """The supervisor as a Kubernetes Job: its process is killed, its pod replaced, the driver adopted."""
    run_dir = begin({1: "slow"})
    toml = (ROOT / "recipes" / "maze-smoke.toml").read_text().partition("[recovery]")[0]
    for key, value in CHOSEN.items():
        table, _, name = key.partition(".")
        if table != "recovery":
            toml = set_key(toml, table, name, value)
    recovery = {key.partition(".")[2]: value for key, value in CHOSEN.items() if key.startswith("recovery.")}
    toml += "[recovery]\n" + "".join(f"{name} = {value}\n" for name, value in recovery.items())
    objects = manifest.build(
        settings.load("paper"),
        outputs,
        image="train",
        run=run_dir.name,
        recipe=toml,
        cluster=NAME,
        entrypoint="python -m tests.kube.driver",
    )
    cluster.apply(api, objects)
    name = manifest.job_name(run_dir.name)

    def pods():
        return core.list_namespaced_pod(NAMESPACE, label_selector=f"job-name={name}").items

    assert eventually(lambda: len(lineage.read(run_dir)["checkpoints"]) > 3, 300), logs(core, pods())
    (first,) = pods()
    for pid in with_mark(first.metadata.uid):
        if "python" in "".join(names_of([pid])) and "shim" not in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)

    def condition():
        status = client.BatchV1Api(api).read_namespaced_job(name, NAMESPACE).status
        return next((c.type for c in status.conditions or []), None)

    assert eventually(condition, 300) == "Complete", logs(core, pods())
    assert len(pods()) == 2
    (row,) = attempts.read(run_dir)
    assert (row["token"], row["outcome"]) == (1, "finished")
    assert any('"adopted"' in text for text in logs(core, pods()))
    assert lease.read(run_dir).holder == ""


def logs(core, pods) -> list[str]:
    return [core.read_namespaced_pod_log(pod.metadata.name, NAMESPACE) for pod in pods]


def set_key(toml: str, table: str, name: str, value: object) -> str:
    lines, inside = [], False
    for line in toml.splitlines():
        if line.startswith("["):
            inside = line.startswith(f"[{table}]")
        lines.append(f"{name} = {json.dumps(value)}" if inside and line.startswith(f"{name} ") else line)
    return "\n".join(lines) + "\n"


def test_nothing_listens_or_waits_afterwards(api, core):
    cluster.down(api, NAMESPACE, NAME, 60)
    end = time.monotonic() + 20
    while core.list_namespaced_pod(NAMESPACE, label_selector=f"ray.io/cluster={NAME}").items:
        assert time.monotonic() < end
        time.sleep(0.1)
