"""The supervisor's Job against Kubernetes' own schemas, and against what it may need and no more."""

from typing import Any

import pytest

from stacks.manifests import supervisor
from tests.manifests.conftest import ROOT

RECIPE = (ROOT / "recipes" / "maze-6gpu.toml").read_text()


@pytest.fixture
def objects(environment, outputs) -> list[dict[str, Any]]:
    return supervisor.build(
        environment,
        outputs,
        image=f"{outputs.train_repository_uri}@sha256:{'0' * 64}",
        run="maze-6gpu-20261130",
        recipe=RECIPE,
        resume="r-1",
        usd_per_hour=36.98,
    )


@pytest.fixture
def job(objects) -> dict[str, Any]:
    return objects[-1]


@pytest.fixture
def pod(job) -> dict[str, Any]:
    return job["spec"]["template"]["spec"]


def test_kubernetes_accepts_every_object(objects, core_faults):
    assert [each["kind"] for each in objects] == ["ServiceAccount", "NetworkPolicy", "ConfigMap", "Job"]
    for each in objects:
        assert core_faults(each) == []


def test_the_recipe_is_carried_as_it_was_written(objects, pod):
    config_map = objects[2]
    assert config_map["data"] == {"recipe.toml": RECIPE}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["recipe"]["configMap"]["name"] == config_map["metadata"]["name"]
    assert "/etc/skypod/recipe.toml" in pod["containers"][0]["args"]


def test_it_has_no_token_of_kubernetes_and_that_of_ray_by_file_only(objects, pod):
    assert objects[0]["automountServiceAccountToken"] is False
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert {entry["name"] for entry in container["env"]} == {"AWS_REGION", "HF_HOME", "SKYPOD_SHARED"}
    assert all("valueFrom" not in entry for entry in container["env"])
    secret = next(volume["secret"] for volume in pod["volumes"] if volume["name"] == "ray-token")
    assert (secret["secretName"], secret["defaultMode"]) == ("skypod", 0o400)
    assert [item["key"] for item in secret["items"]] == ["auth_token"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_only_supervisors_get_in_at_the_dashboard_and_only_there(objects, job):
    policy = objects[1]["spec"]
    assert policy["podSelector"] == {"matchLabels": {"ray.io/node-type": "head"}}
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8265}]
    (source,) = rule["from"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert source["podSelector"]["matchLabels"].items() <= labels.items()


def test_it_is_started_again_but_for_what_a_person_has_to_do(job, pod):
    assert pod["restartPolicy"] == "Never"
    actions = {
        rule["action"]: rule["onExitCodes"]["values"]
        for rule in job["spec"]["podFailurePolicy"]["rules"]
        if "onExitCodes" in rule
    }
    assert actions == {"FailJob": [2, 10], "Ignore": [5]}


def test_it_asks_ray_by_the_service_that_kuberay_makes(pod):
    arguments = pod["containers"][0]["args"]
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert options["--dashboard"] == "http://skypod-head-svc.skypod.svc:8265"
    assert options["--entrypoint"] == "python -m training.run"
    assert (options["--resume"], options["--usd-per-hour"]) == ("r-1", "36.9800")
    assert pod["containers"][0]["command"][-1] == "/shared/runs/maze-6gpu-20261130"


def test_its_exit_codes_are_those_of_its_process():
    from training.errors import ConfigError
    from training.lease import FencedError
    from training.supervisor.__main__ import GIVEN_UP

    assert [ConfigError.exit_code, GIVEN_UP] == supervisor.FINAL_EXITS
    assert [FencedError.exit_code] == supervisor.NOT_COUNTED_EXITS
