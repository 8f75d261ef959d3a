"""The checks that need no account: versions, tools, pods, cost, exposure."""

import tomllib
from dataclasses import replace
from datetime import date

import boto3
import pytest

from cdk_app import settings
from cdk_app.doctor import cost, exposure, fit, images, kubernetes, tools, versions
from cdk_app.doctor.finding import Finding, Status, Unknown, exit_code
from cdk_app.doctor.instances import INSTANCES, allocatable, groups
from tests.synth.conftest import ENDPOINT

OK, WARNING, FAILED, UNKNOWN = Status


@pytest.fixture(scope="module")
def sources(environment) -> versions.Sources:
    return versions.Sources(images.read("train"), images.read("serve"), environment.ray.version)


def of(findings: list[Finding], check: str) -> Finding:
    return next(finding for finding in findings if finding.check == check)


def pinned(image: images.ImageSource, **pins: str) -> images.ImageSource:
    return replace(image, pins=image.pins | {name: (version,) for name, version in pins.items()})


@pytest.mark.parametrize("name", ["paper", "dev"])
def test_the_repository_agrees_with_itself(name, sources):
    wrong = [f for f in versions.check(settings.load(name), sources) if f.status is not OK]
    assert wrong == []


def test_another_ray_in_the_image_than_in_the_settings_fails(environment, sources):
    found = versions.check(environment, replace(sources, train=pinned(sources.train, ray="2.58.0")))
    assert of(found, "Ray for training").status is FAILED
    assert of(found, "SkyRL 0.4.0's own pins").remedy == "pin ray==2.57.0 in docker/train"


def test_the_job_client_may_differ_in_its_minor_version_only(environment, sources):
    for client, status in (("2.56.0", WARNING), ("3.0.0", FAILED), ("", UNKNOWN)):
        found = versions.check(environment, replace(sources, ray_client=client))
        assert of(found, "Ray job client").status is status


def test_a_served_engine_of_another_version_fails(environment, sources):
    found = versions.check(environment, replace(sources, serve=pinned(sources.serve, vllm="0.29.0")))
    assert of(found, "vllm in both images").found == "0.30.0 to train, 0.29.0 to serve"
    assert of(found, "vllm in both images").status is FAILED


@pytest.mark.parametrize(
    ("cuda", "devel", "status"),
    [
        ((12, 8), True, FAILED),
        ((12, 9), True, OK),
        ((13, 0), False, FAILED),
        ((14, 0), True, FAILED),
        (None, True, UNKNOWN),
    ],
)
def test_cuda_must_know_the_gpu_and_run_on_the_nodes_driver(environment, sources, cuda, devel, status):
    train = replace(sources.train, cuda=cuda, devel=devel)
    found = versions.check(environment, replace(sources, train=train))
    assert of(found, "CUDA in the train image").status is status


def test_charts_from_before_these_gpus_and_before_tokens_fail(environment, sources):
    charts = environment.charts.model_copy(update={"hyperpod_revision": "v3.9.1", "kuberay_version": "1.5.1"})
    found = versions.check(environment.model_copy(update={"charts": charts}), sources)
    assert of(found, "HyperPod charts").status is FAILED
    assert of(found, "KubeRay and Ray for token authentication").status is FAILED


def test_an_unknown_trainer_is_unknown(environment, sources):
    found = versions.check(environment, replace(sources, train=pinned(sources.train, skyrl="0.5.0")))
    assert of(found, "SkyRL's own pins").status is UNKNOWN


def test_image_sources_are_read_from_dockerfile_and_locks(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / "Dockerfile").write_text("# base\nFROM org/ray:2.57.0-py312-cu130\nRUN python3.12 -m venv /x\n")
    (folder / "a.lock").write_text("# torch==1\nTorch[all]==2.13.0 \\\n  --hash=sha256:0\nray==2.57.0 ; x\n")
    (folder / "b.txt").write_text("ray==2.58.0\npydantic>=2\n")
    found = images.read("train", tmp_path)
    assert (found.cuda, found.devel, found.python) == ((13, 0), False, "3.12")
    assert found.version("torch") == "2.13.0"
    assert found.version("ray") == "2.57.0 and 2.58.0"
    assert found.version("pydantic") == "no pin"


def test_tools_are_compared_with_the_pins(environment):
    good = tools.Tools("22.1.0", "2.1", "2.1", "2.2", "2.2", "1.34.9")
    assert {f.status for f in tools.check(environment, good)} == {OK}
    old = tools.Tools("20.1.0", "", "2.1", "2.1", "2.2", "1.33.0")
    assert [f.status for f in tools.check(environment, old)] == [WARNING, FAILED, FAILED, WARNING]
    assert tools.check(environment, replace(old, node=""))[0].status is FAILED
    assert tools.read().cdk_pinned.startswith("2.")


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (kubernetes.Support("STANDARD_SUPPORT", date(2027, 6, 1)), OK),
        (kubernetes.Support("STANDARD_SUPPORT", date(2027, 1, 20)), WARNING),
        (kubernetes.Support("EXTENDED_SUPPORT", date(2026, 1, 1)), WARNING),
        (kubernetes.Support("UNSUPPORTED", date(2025, 1, 1)), FAILED),
        (None, FAILED),
        (Unknown("no"), UNKNOWN),
    ],
)
def test_kubernetes_needs_two_months_of_standard_support(environment, found, status):
    assert kubernetes.check_support(environment, found, today=date(2026, 12, 1)).status is status


def test_addons_and_their_pins_come_from_the_templates():
    template = {
        "Resources": {
            "A": {"Type": "AWS::EKS::Addon", "Properties": {"AddonName": "a", "AddonVersion": "v1"}},
            "B": {"Type": "AWS::EKS::Addon", "Properties": {"AddonName": "b"}},
            "C": {"Type": "AWS::S3::Bucket", "Properties": {}},
        }
    }
    assert kubernetes.addons({"eks": template}) == {"a": "v1", "b": ""}


@pytest.mark.usefixtures("moto")
def test_instances_are_those_that_ec2_describes():
    ec2 = boto3.Session("x", "x", region_name="us-west-2").client("ec2")
    types = [name.removeprefix("ml.") for name in INSTANCES]
    described = ec2.describe_instance_types(InstanceTypes=types)["InstanceTypes"]
    assert len(described) == len(INSTANCES)
    for item in described:
        ours = INSTANCES[f"ml.{item['InstanceType']}"]
        gpu = item.get("GpuInfo", {"Gpus": [{"Count": 0, "Name": "", "MemoryInfo": {"SizeInMiB": 0}}]})[
            "Gpus"
        ][0]
        assert (ours.cpus, ours.memory_gib) == (
            item["VCpuInfo"]["DefaultVCpus"],
            item["MemoryInfo"]["SizeInMiB"] / 1024,
        )
        assert (ours.gpus, ours.gpu, ours.gpu_memory_mib) == (
            gpu["Count"],
            gpu["Name"],
            gpu["MemoryInfo"]["SizeInMiB"],
        )


def test_a_pod_gets_less_than_the_nameplate_and_asking_for_all_fails(environment):
    cpus, memory_gib = allocatable(INSTANCES["ml.g7e.12xlarge"])
    assert 44 <= cpus < 48
    assert 480 <= memory_gib < 512
    assert {f.status for f in fit.check_pods(environment)} == {OK}
    worker = environment.ray.worker.model_copy(update={"memory_gib": 512})
    ray = environment.ray.model_copy(update={"worker": worker})
    full = fit.check_pods(environment.model_copy(update={"ray": ray}))
    assert [f.status for f in full] == [OK, FAILED, OK]


def test_gpus_of_the_settings_are_those_of_the_type():
    assert fit.check_gpus(settings.load("paper")).status is OK
    wrong = settings.load("paper", {"hyperpod.gpu.gpus": 4})
    assert fit.check_gpus(wrong).remedy == "set hyperpod.gpu.gpus = 2"
    strange = settings.load("paper", {"hyperpod.gpu.instance_type": "ml.x1.large"})
    assert fit.check_gpus(strange).status is UNKNOWN


def test_cost_is_nodes_and_what_stays_without_them(environment):
    found = cost.expected(environment)
    assert found.nodes_hour == pytest.approx(3 * 10.3576 + 5.5)
    assert found.rest_hour == pytest.approx(0.10 + 0.045 + (1200 * 0.21 + 1 + 9) / 730)
    assert "ml.r5d.16xlarge" in found.estimated
    assert [f.status for f in cost.check(environment)] == [OK, OK]


def test_an_endpoint_costs_its_fewest_instances_with_nodes_or_without(environment):
    endpoint = tomllib.loads(ENDPOINT)["serving"]["endpoint"]
    served = {"instance_type": "ml.g7e.2xlarge", "min_copies": 2, "max_copies": 3}
    found = cost.expected(settings.load("paper", {"serving.endpoint": endpoint | served}))
    without = cost.expected(environment)
    assert found.rest_hour == pytest.approx(without.rest_hour + 2 * 4.2039)
    assert found.nodes_hour == without.nodes_hour
    strange = settings.load("paper", {"serving.endpoint": endpoint})
    assert cost.expected(strange).without_price == (endpoint["instance_type"],)


def test_a_budget_that_a_day_uses_up_is_warned_about():
    small = settings.load("paper", {"guardrails.monthly_budget_usd": 500})
    found = cost.check(small)[-1]
    assert found.status is WARNING
    assert "13 hours" in found.found


def test_a_type_without_a_price_makes_the_cost_unknown():
    strange = settings.load("paper", {"hyperpod.head.instance_type": "ml.x1.large"})
    (found,) = cost.check(strange)
    assert found.status is UNKNOWN
    assert "ml.x1.large" in found.found


def test_open_endpoints_and_mute_alerts_are_warned_about():
    assert [f.status for f in exposure.check(settings.load("paper"))] == [WARNING, WARNING, OK]
    careful = settings.load(
        "paper",
        {"eks.public_access_cidrs": ["198.51.100.7/32"], "observability.alert_email": "a@example.org"},
    )
    assert {f.status for f in exposure.check(careful)} == {OK}
    private = settings.load("paper", {"eks.public_access": False})
    assert exposure.check(private)[0].status is OK


def test_replicas_are_weighed_against_the_nodes_that_they_run_on():
    own = {"instance_type": "ml.g7e.2xlarge", "count": 1, "gpus": 1}
    small = settings.load("paper", {"hyperpod.serving": own})
    replica = fit.check_pods(small)[-1]
    assert replica.status is FAILED
    assert "ml.g7e.2xlarge" in replica.check


def test_all_instance_groups_are_seen(environment):
    assert list(groups(environment))[:2] == ["head", "gpu"]


def test_a_failure_outweighs_an_account_that_could_not_be_asked():
    failed, warned = (Finding("a", "b", status, "") for status in (FAILED, WARNING))
    assert exit_code([warned], aws_answered=True) == 0
    assert exit_code([warned], aws_answered=False) == 3
    assert exit_code([failed], aws_answered=False) == 1
