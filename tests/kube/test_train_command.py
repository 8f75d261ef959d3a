"""`skypod train` against the Kubernetes stand-in, with supervisors that are a few lines of Python."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from kubernetes import client

from cdk_app import cluster, settings, supervised
from cdk_app import train as command
from stacks.manifests import supervisor
from stacks.outputs import Outputs
from tests.kube.conftest import eventually
from training.errors import ConfigError, SubstrateError
from training.jobs import Endpoint, Job

pytestmark = pytest.mark.slow
RECIPE = "maze-smoke"
# Says two events, and dies the first time it is started.
TOLD = """
import json, pathlib, sys
def say(**event): print("@skypod " + json.dumps(event), flush=True)
mark = pathlib.Path("/shared/RUN-began")
say(event="supervisor", attempt=1, what="submitted" if not mark.exists() else "adopted", message="job r-1")
if not mark.exists():
    mark.touch()
    sys.exit(137)
print("noise")
say(event="checkpoint", attempt=1, step=1)
sys.exit(CODE)
"""


@pytest.fixture
def at(api, namespace, core) -> command.Deployed:
    fields = {name: "x" for name in Outputs.__dataclass_fields__}
    outputs = Outputs(**fields | {"namespace": namespace, "region": "us-west-2"})
    core.create_namespaced_secret(
        namespace, {"metadata": {"name": "skypod"}, "stringData": {"auth_token": "t"}}
    )
    return command.Deployed(settings.load("paper"), None, outputs, api)


@pytest.fixture
def call(at, namespace, monkeypatch):
    """`skypod train ...`, whose supervisors run `script` in place of training.supervisor."""
    monkeypatch.setattr(command.Deployed, "reach", lambda _: at)
    monkeypatch.setattr(command.Deployed, "ray", lambda *_: Endpoint("http://127.0.0.1:1", ""))
    monkeypatch.setattr(command.jobs, "listing", lambda _: [])
    monkeypatch.setattr(command.images, "require", lambda *_: "train@sha256:0")
    whole = supervisor.build

    def call(*arguments: str, script: str = "import time; time.sleep(600)", code: int = 0):
        def build(*args, **keys):
            *others, job = whole(*args, **keys)
            container = job["spec"]["template"]["spec"]["containers"][0]
            text = script.replace("RUN", f"{namespace}-{keys['run']}").replace("CODE", str(code))
            container["command"], container["args"] = ["python", "-c", text], [*container["args"][:2]]
            return [*others, job]

        monkeypatch.setattr(command.supervisor, "build", build)
        return CliRunner().invoke(command.train, arguments)

    return call


def test_a_run_is_submitted_once_and_followed_over_its_supervisors(call, at):
    assert "follow it: skypod train follow r" in call("submit", RECIPE, "--run", "r", script=TOLD).output
    followed = call("follow", "r")
    assert followed.output.splitlines() == [
        "supervisor (attempt 1): submitted: job r-1",
        "supervisor (attempt 1): adopted: job r-1",
        "checkpoint of step 1",
        "r: finished CompletionsReached",
    ]
    assert followed.exit_code == 0
    lines = call("follow", "r", "--json").stdout.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["supervisor", "supervisor", "checkpoint"]
    again = call("submit", RECIPE, "--run", "r")
    assert isinstance(again.exception, SubstrateError)
    assert "was submitted already; its supervisor train-r is finished" in str(again.exception)


def test_a_run_that_was_given_up_is_resumed_with_the_same_recipe_or_another(call, at, tmp_path):
    call("submit", RECIPE, "--run", "r", script=TOLD, code=10)
    assert call("follow", "r").exit_code == 1
    assert supervised.find(at.api, at.namespace, "r").state == "failed"
    text = supervised.recipe(at.api, at.namespace, "r")

    assert call("resume", "r").exit_code == 0
    assert supervised.find(at.api, at.namespace, "r").state == "active"
    assert supervised.recipe(at.api, at.namespace, "r") == text
    early = call("resume", "r")
    assert isinstance(early.exception, SubstrateError)
    assert "is supervised already, by train-r" in str(early.exception)

    assert call("stop", "r").output == "r is stopped\n"
    other = tmp_path / "other.toml"
    other.write_text(text.replace("stall_s = 300", "stall_s = 301"))
    assert call("resume", "r", "--recipe", str(other)).exit_code == 0
    assert "stall_s = 301" in supervised.recipe(at.api, at.namespace, "r")
    batch = client.BatchV1Api(at.api)
    assert eventually(lambda: batch.read_namespaced_job("train-r", at.namespace).status.active)


def test_a_resume_is_a_new_request_each_time(at, monkeypatch, call):
    requests = []
    whole = supervisor.build
    call("submit", RECIPE, "--run", "r", script=TOLD, code=10)
    call("follow", "r")

    def build(*args, **keys):
        requests.append(keys["resume"])
        return whole(*args, **keys)

    monkeypatch.setattr(command.supervisor, "build", build)
    for _ in range(2):
        CliRunner().invoke(command.train, ["resume", "r"])
        supervised.delete(at.api, at.namespace, "r")
    assert len(set(requests)) == len(requests) == 2
    assert all(requests)


def test_stopping_ends_the_supervisor_before_its_job(call, at, core, monkeypatch):
    call("submit", RECIPE, "--run", "r")
    assert eventually(lambda: core.list_namespaced_pod(at.namespace).items)
    stopped = []

    def stop(_, job: str) -> None:
        assert supervised.find(at.api, at.namespace, "r") is None
        assert core.list_namespaced_pod(at.namespace).items == []
        stopped.append(job)

    live = Job("r-1", "r", "RUNNING", "", None)
    monkeypatch.setattr(command.jobs, "listing", lambda _: [replace(live, job="q-1", run="q"), live])
    monkeypatch.setattr(command.jobs, "stop", stop)
    assert call("stop", "r").output == "r is stopped\n"
    assert stopped == ["r-1"]


def test_what_is_not_there_is_said_to_be_missing(call):
    for arguments, kind, words in (
        (["stop", "nobody"], SubstrateError, "run 'nobody' is not running here"),
        (["resume", "nobody"], ConfigError, "the recipe of run 'nobody' is not in the cluster any more"),
        (["submit", RECIPE, "--run", "My_Run"], ConfigError, "run id 'My_Run' cannot name a Kubernetes Job"),
        (["submit", "maze-smokey"], ConfigError, "maze-smokey"),
    ):
        error = call(*arguments).exception
        assert isinstance(error, kind)
        assert words in str(error)


def test_a_price_below_nothing_does_not_lift_the_limit_of_cost(call):
    refused = call("submit", RECIPE, "--run", "r", "--usd-per-hour", "-1")
    assert isinstance(refused.exception, ConfigError)
    assert refused.exception.problem == "-1.0 USD an hour is no price"


def test_the_status_lists_supervisors_beside_jobs(call, at):
    call("submit", RECIPE, "--run", "r", script=TOLD, code=10)
    call("follow", "r")
    line = call("status").output
    assert line.startswith("train-r ")
    assert "failed" in line
    assert "PodFailurePolicy" in line
    assert json.loads(call("status", "--json").output)["run"] == "r"


def test_a_topology_that_the_environment_lacks_is_refused_before_anything_is_made(call, at, tmp_path):
    text = (command.RECIPES / "maze-smoke.toml").read_text()
    big = tmp_path / "big.toml"
    big.write_text(text.replace("gpus_per_node = 2", "gpus_per_node = 4").replace("nodes = 3", "nodes = 2"))
    big.write_text(big.read_text().replace("micro_batch_episodes = 8", "micro_batch_episodes = 6"))
    error = call("submit", str(big), "--run", "r").exception
    assert isinstance(error, ConfigError)
    assert "has 3 nodes with 2 GPUs" in str(error)
    assert supervised.find(at.api, at.namespace, "r") is None
    assert cluster.listing(at.api, at.namespace) == []
