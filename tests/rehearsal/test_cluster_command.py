"""`skypod cluster` against the emulated AWS and the Kubernetes stand-in: Ray nodes are real processes."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kubernetes import dynamic
from kubernetes.client import CoreV1Api

from cdk_app import images, settings, site
from cdk_app.command import cli
from rehearsal import laptop_image, stages, substrate
from rehearsal.stages import Rehearsal
from rehearsal.substrate import Folders
from stacks.manifests import rayservice
from tests.kube.conftest import PROJECT, crds_dir, eventually, with_mark
from training.errors import ConfigError, SubstrateError

pytestmark = [pytest.mark.emulator, pytest.mark.ray]
TRAIN_PYTHON = Path(os.environ.get("SKYPOD_TRAIN_PYTHON", PROJECT / ".venv-train" / "bin" / "python"))


class Quiet:
    """A stage that shows nothing."""

    note = ""

    def update(self, text: str) -> None: ...


class Elsewhere(Folders):
    """Folders of a rehearsal outside of the checkout, with the training environment of the checkout."""

    train_python = TRAIN_PYTHON


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """Every stack of `dev` in an emulated AWS, and this process pointed there."""
    if not TRAIN_PYTHON.exists():
        pytest.skip(f"no training environment at {TRAIN_PYTHON}")
    folders = Elsewhere(tmp_path_factory.mktemp("cluster"))
    folders.prepare()
    environment = settings.load("dev")
    with (
        pytest.MonkeyPatch.context() as patch,
        substrate.running(folders, environment, crds_dir()) as parts,
    ):
        for name, value in parts.aws.env.items():
            patch.setenv(name, value)
        unused = dict.fromkeys(("warm_start", "recipe", "recipe_file"))
        r = Rehearsal(folders, parts, environment_name="dev", environment=environment, run="", **unused)
        stages.deploy_stacks(r, Quiet())
        yield r


def skypod(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["cluster", *arguments, "--environment", "dev"])


def lines(result: Result) -> list[dict]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_no_cluster_is_made_of_an_image_that_was_not_built(deployed: Rehearsal):
    ecr = deployed.session.client("ecr")
    for image in images.IMAGES:
        repository = getattr(deployed.deployed, f"{image}_repository_uri").partition("/")[2]
        tag = {"imageTag": getattr(deployed.deployed, f"{image}_image_tag")}
        ecr.batch_delete_image(repositoryName=repository, imageIds=[tag])
    refused = skypod("up")
    assert isinstance(refused.exception, SubstrateError)
    assert "the train image of the deployed sources was not built" in refused.exception.problem
    assert "skypod images --build" in refused.exception.remedy
    assert skypod("status").exit_code == 1
    assert "skypod cluster up" in skypod("status").output
    laptop_image.register(deployed.session, deployed.deployed, deployed.folders.train_python)


def test_the_ray_service_comes_goes_and_changes_by_its_stack(deployed: Rehearsal):
    """Its adapter is not in S3, so no server starts."""
    api, at = deployed.api(), (deployed.session, deployed.environment, deployed.deployed)
    services = dynamic.DynamicClient(api).resources.get(api_version="ray.io/v1", kind="RayService")
    served = rayservice.Served(
        adapter="maze-6c576434edc8",
        base="models/base",
        model_id="maze",
        image=images.require(deployed.session, deployed.deployed, "serve"),
        max_lora_rank=16,
        max_model_len=512,
    )

    def annotations() -> list[dict]:
        found = services.get(namespace=deployed.deployed.namespace).to_dict()["items"]
        return [one["metadata"]["annotations"] for one in found]

    def ranks() -> list[int]:
        found = services.get(namespace=deployed.deployed.namespace).to_dict()["items"]
        configs = [json.loads(one["spec"]["serveConfigV2"])["applications"][0]["args"] for one in found]
        return [one["llm_configs"][0]["engine_kwargs"]["max_lora_rank"] for one in configs]

    # vLLM knows some ranks only, and one of a lower rank leaves those of a higher one their room.
    for adapter, rank, room in ((served.adapter, 24, 32), ("maze-0123456789ab", 8, 32)):
        site.start_serving(*at, api, replace(served, adapter=adapter, max_lora_rank=rank))
        assert (annotations(), ranks()) == ([{"skypod/adapter": adapter}], [room])
    with pytest.raises(ConfigError, match=r"serves Base = 'models/base', and maze-.* needs 'other'"):
        site.start_serving(*at, api, replace(served, base="other"))
    services.delete(namespace=deployed.deployed.namespace, name=rayservice.NAME)
    assert eventually(lambda: annotations() == [], 20)
    site.start_serving(*at, api, replace(served, adapter="maze-0123456789ab"))
    assert annotations() == [{"skypod/adapter": "maze-0123456789ab"}]
    for _ in range(2):
        site.stop_serving(*at)
        assert annotations() == []
    for base, room in ((served.base, 32), ("other", 8)):
        site.start_serving(*at, api, replace(served, base=base, max_lora_rank=8))
        assert ranks() == [room]
        site.stop_serving(*at)


def test_a_cluster_that_is_late_says_which_nodes_are_missing_and_stays(deployed: Rehearsal):
    late = skypod("up", "--timeout-s", "1")
    assert isinstance(late.exception, SubstrateError)
    assert "is not ready after 1 s: 0 of 1 workers, head starting" in late.exception.problem
    assert "skypod-head" in late.exception.problem, "the pod that is waited for"
    (row,) = lines(skypod("status", "--json"))
    assert (row["cluster"], row["current"]) == ("skypod", True)


def test_up_makes_a_ready_cluster_of_the_deployed_image_and_down_leaves_nothing(deployed: Rehearsal):
    up = skypod("up", "--json")
    assert up.exit_code == 0, up.exception
    applied, *progress, ready = lines(up)
    pinned = images.require(deployed.session, deployed.deployed, "train")
    assert "@sha256:" in pinned
    assert (applied["event"], ready["event"]) == ("applied", "ready")
    assert applied["image"] == ready["image"] == pinned
    assert progress[-1]["message"] == "1 of 1 workers, head up"

    status = skypod("status", "--json")
    row = {"cluster": "skypod", "state": "ready", "nodes": "1 of 1 workers, head up"}
    assert (status.exit_code, lines(status)) == (0, [row | {"image": pinned, "current": True}])
    namespace = deployed.deployed.namespace
    pods = (
        CoreV1Api(deployed.api()).list_namespaced_pod(namespace, label_selector="ray.io/cluster=skypod").items
    )
    assert {pod.spec.containers[0].image for pod in pods} == {pinned}

    down = skypod("down", "--json")
    assert (down.exit_code, lines(down)[-1]["event"]) == (0, "gone")
    assert eventually(lambda: not [pid for pod in pods for pid in with_mark(pod.metadata.uid)], 20)
    assert skypod("status").exit_code == 1
    assert skypod("down").exit_code == 0, "what is gone already is no error"
