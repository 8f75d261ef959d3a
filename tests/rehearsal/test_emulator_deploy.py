"""All stacks through the real cdk CLI: deploy, no-op, read back, update, roll back, destroy, nothing left."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from cdk_app import images, names, outputs, readback, residue, settings
from rehearsal import deploy
from rehearsal.aws.codebuild import NOT_EXECUTED
from rehearsal.aws.process import EmulatedAws
from serving.rollout.stack_parameters import StackParameters
from stacks.environment import Environment
from stacks.manifests import rayservice
from stacks.names import KUBE_OBJECTS
from tests.rehearsal.kube_api import KubeApi
from tests.synth.conftest import ENDPOINT
from training.errors import SubstrateError

pytestmark = pytest.mark.emulator


@dataclass
class Deployment:
    """The default environment in an emulated AWS, with the means to change its settings."""

    aws: EmulatedAws
    kube: KubeApi
    folder: Path
    environment: Environment
    events: list[deploy.Event] = field(default_factory=list)

    @property
    def stacks(self) -> tuple[str, ...]:
        return names.of(self.environment, self.aws.account).stacks

    def assembly(self, name: str, *replacements: tuple[str, str]) -> list[str]:
        """Synthesize the settings with textual replacements; the app arguments of the result."""
        path = _write(self.folder / f"{name}.toml", *replacements)
        folder = self.folder / name
        deploy.synth(self.aws.env, ["-c", f"environment={path}"], folder, self.events.append)
        return deploy.assembly_args(folder)

    def deploy(self, app_args: Sequence[str]) -> dict[str, set[str]]:
        """Deploy; the stacks by the last word about them: done, unchanged or failed."""
        events: list[deploy.Event] = []
        deploy.deploy(self.aws.env, app_args, events.append)
        return _by_status(events)

    def checks(self, environment: Environment | None = None) -> list[readback.Check]:
        """The checks that fail."""
        session = self.aws.session()
        environment = environment or self.environment
        found = outputs.read(session, environment)
        checks = readback.compare(session, environment, found)
        assert len(checks) > 50
        return [check for check in checks if not check.ok]


# The default environment, with its optional parts on.
OPTIONAL = """
[hyperpod.serving]
instance_type = "ml.g7e.4xlarge"
count = 1
gpus = 1

[domain]
name = "ray.example.com"
hosted_zone_id = "Z0123456789ABCDEFGHIJ"
certificate_arn = "arn:aws:acm:us-west-2:000000000000:certificate/01234567-89ab-cdef-0123-456789abcdef"

[serving.gateway]

[studio]
enabled = true

[governance]
enabled = true

[[governance.teams]]
name = "research"
gpu_nodes = 3
"""
ZONES = 'zones = ["us-west-2a", "us-west-2b"]'
ON = (
    (ZONES, f"{ZONES}\ninterface_endpoints = true\nflow_logs = true"),
    (
        'public_access_cidrs = ["0.0.0.0/0"]',
        'public_access = false\naddon_versions = { kube-proxy = "v1.35.0-eksbuild.2" }',
    ),
)
NAMESPACE = ('namespace = "skypod"', 'namespace = "hyperpod-ns-research"')
KUEUE = "/apis/apps/v1/namespaces/kueue-system/deployments/kueue-controller-manager"


def _write(path: Path, *replacements: tuple[str, str]) -> Path:
    text = (settings.FOLDER / f"{settings.DEFAULT}.toml").read_text()
    for old, new in (NAMESPACE, *ON, *replacements):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text + OPTIONAL + ENDPOINT)
    return path


def _by_status(events: Sequence[deploy.Event]) -> dict[str, set[str]]:
    kept: dict[str, set[str]] = {"done": set(), "unchanged": set(), "failed": set()}
    for event in events:
        if event.stack and event.status in kept:
            kept[event.status].add(event.stack)
    return kept


@pytest.fixture(scope="module")
def deployed(aws: EmulatedAws, kube: KubeApi, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    folder = tmp_path_factory.mktemp("assemblies")
    made = Deployment(aws, kube, folder, settings.load(_write(folder / "first.toml")))
    # Nothing here runs the add-on's pods.
    kube.objects[KUEUE] = {"status": {"conditions": [{"type": "Available", "status": "True"}]}}
    s3 = aws.session().client("s3")
    s3.create_bucket(Bucket="models", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    s3.put_object(Bucket="models", Key="qwen3-vl-8b/config.json", Body=b"{}")
    deploy.bootstrap(aws.env, made.events.append)
    assert _by_status([]) | made.deploy(made.assembly("first")) == {
        "done": set(made.stacks),
        "unchanged": set(),
        "failed": set(),
    }
    return made


@pytest.fixture(scope="module")
def original(deployed: Deployment) -> list[str]:
    """The app arguments of the first deployment."""
    return deploy.assembly_args(deployed.folder / "first")


def test_second_deploy_changes_nothing(deployed: Deployment, original: list[str]):
    assert deploy.diff(deployed.aws.env, original, deployed.events.append) == ()
    assert deployed.deploy(original)["unchanged"] == set(deployed.stacks)


def test_services_say_what_the_settings_ask_for(deployed: Deployment):
    assert deployed.checks() == []


def test_kubernetes_objects_were_applied_by_an_eks_token(deployed: Deployment):
    named = outputs.read(deployed.aws.session(), deployed.environment).eks_cluster_name
    cluster = deployed.aws.session().client("eks").describe_cluster(name=named)["cluster"]
    assert cluster["endpoint"] == deployed.kube.endpoint
    assert base64.b64decode(cluster["certificateAuthority"]["data"]) == deployed.kube.ca_pem.read_bytes()
    namespace = deployed.environment.namespace
    assert f"/api/v1/persistentvolumes/{namespace}-shared" in deployed.kube.objects
    accounts = [path for path in deployed.kube.objects if "/serviceaccounts/" in path]
    assert len(accounts) >= 2
    assert deployed.kube.refused == 0


@pytest.mark.parametrize("image", ["train", "serve"])
def test_image_builds_are_checked_and_push_nothing(deployed: Deployment, image: str):
    session = deployed.aws.session()
    found = outputs.read(session, deployed.environment)
    project = getattr(found, f"{image}_build_project")
    build = session.client("codebuild").start_build(projectName=project)["build"]
    assert build["buildStatus"] == "SUCCEEDED", build["phases"]
    ran = next(phase for phase in build["phases"] if phase["phaseType"] == "BUILD")
    assert ran["contexts"][0]["message"] == NOT_EXECUTED
    repository = names.of(deployed.environment, deployed.aws.account).repository(image)
    assert session.client("ecr").list_images(repositoryName=repository)["imageIds"] == []
    with pytest.raises(SubstrateError, match=f"the {image} image of the deployed sources was not built"):
        images.require(session, found, image)


def test_an_adapter_comes_by_a_parameter_and_stays_over_deploys(deployed: Deployment, original: list[str]):
    named = names.of(deployed.environment, deployed.aws.account)
    stack, adapter = named.stack("inference"), "maze-6c576434edc8"
    session = deployed.aws.session()
    session.client("s3").put_object(
        Bucket=named.artifacts_bucket, Key=f"adapters/{adapter}.tar.gz", Body=b"weights"
    )
    given = [*original, "--parameters", f"{stack}:Adapter1={adapter}"]
    assert deployed.deploy(given)["done"] == {stack}
    for again in (given, original):
        assert deployed.deploy(again)["unchanged"] == set(deployed.stacks)
    listed = session.client("sagemaker").list_inference_components()["InferenceComponents"]
    assert {one["InferenceComponentName"] for one in listed} == {f"{stack}-base", f"{stack}-{adapter}"}
    assert deployed.checks() == []


def test_the_ray_service_goes_with_its_adapter_and_the_gateway_stays(
    deployed: Deployment, original: list[str]
):
    named, session = names.of(deployed.environment, deployed.aws.account), deployed.aws.session()
    stack, namespace = named.stack("serving"), deployed.environment.namespace
    path = f"/apis/ray.io/v1/namespaces/{namespace}/rayservices/{rayservice.NAME}"
    served = rayservice.Served(
        adapter="maze-6c576434edc8",
        base="models/qwen3-vl-8b",
        model_id="maze",
        image=f"{outputs.read(session, deployed.environment).serve_repository_uri}@sha256:{'0' * 64}",
        max_lora_rank=64,
        max_model_len=16384,
    )
    gateway = f"/apis/apps/v1/namespaces/{namespace}/deployments/skypod-gateway"
    assert {path, gateway} & deployed.kube.objects.keys() == set()
    given = list(original)
    for name, value in served.parameters().items():
        given += ["--parameters", f"{stack}:{name}={value}"]
    assert deployed.deploy(given)["done"] == {stack}
    assert deployed.deploy(original)["unchanged"] == set(deployed.stacks)
    uri = f"s3://{named.artifacts_bucket}/adapters"
    wanted = rayservice.build(deployed.environment, served, region=named.region, adapters_uri=uri)
    assert deployed.kube.objects[path]["spec"] == wanted["spec"]

    assert deployed.deploy([*original, "--parameters", f"{stack}:Adapter="])["done"] == {stack}
    assert path not in deployed.kube.objects
    (container,) = deployed.kube.objects[gateway]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == served.image, "it answers, and says that nothing is live"
    second = "maze-0123456789ab"
    parameters = StackParameters(session.client("cloudformation"), stack, KUBE_OBJECTS)
    parameters.change(parameters.read(), {"Adapter": second})
    assert deployed.kube.objects[path]["metadata"]["annotations"] == {"skypod/adapter": second}
    assert deployed.kube.objects[path]["spec"] == wanted["spec"]
    assert deployed.deploy(original)["unchanged"] == set(deployed.stacks)
    assert deployed.checks() == []


BUDGET = ("monthly_budget_usd = 5000", "monthly_budget_usd = 6000")


def test_changed_setting_updates_only_its_stack(deployed: Deployment):
    changed = deployed.assembly("changed", BUDGET)
    guardrails = next(stack for stack in deployed.stacks if stack.endswith("guardrails"))
    assert deploy.diff(deployed.aws.env, changed, deployed.events.append) == (guardrails,)
    result = deployed.deploy(changed)
    assert result["done"] == {guardrails}
    assert result["unchanged"] == set(deployed.stacks) - {guardrails}
    assert [check.what for check in deployed.checks()] == ["monthly budget, USD"]
    assert deployed.checks(settings.load(deployed.folder / "changed.toml")) == []


def test_failing_resource_rolls_back_and_is_named(deployed: Deployment):
    broken = deployed.assembly("broken", BUDGET, ("ml.g7e.12xlarge", "ml.g9.huge"))
    with pytest.raises(SubstrateError) as failed:
        deployed.deploy(broken)
    assert re.search(r"skypod-paper-hyperpod.*ml\.g9\.huge", failed.value.problem, re.S)
    assert failed.value.remedy
    client = deployed.aws.session().client("cloudformation")
    stack = client.describe_stacks(StackName="skypod-paper-hyperpod")["Stacks"][0]
    assert stack["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    assert deployed.checks(settings.load(deployed.folder / "changed.toml")) == []


def test_destroy_leaves_nothing(deployed: Deployment, original: list[str]):
    session = deployed.aws.session()
    before = residue.sweep(session, deployed.environment)
    assert {entry.kind for entry in before} >= {
        "CloudFormation stack",
        "HyperPod cluster",
        "EKS cluster",
        "FSx file system",
        "VPC",
        "NAT gateway",
        "VPC endpoint",
        "VPC flow log",
        "S3 bucket",
        "ECR repository",
        "CodeBuild project",
        "Lambda function",
        "log group",
        "KMS key",
        "IAM role",
        "IAM policy",
        "Prometheus workspace",
        "Grafana workspace",
        "Studio domain",
        "Studio user profile",
        "inference component",
        "endpoint",
        "endpoint configuration",
        "model",
        "scalable target",
        "compute quota",
        "scheduler configuration",
        "alarm",
        "schedule",
        "SNS topic",
        "budget",
    }
    bucket = names.of(deployed.environment, deployed.aws.account).artifacts_bucket
    session.client("s3").put_object(Bucket=bucket, Key="runs/1/run.json", Body=b"{}")
    events: list[deploy.Event] = []
    deploy.destroy(deployed.aws.env, original, events.append)
    assert _by_status(events)["done"] == set(deployed.stacks)
    assert residue.sweep(session, deployed.environment) == []
    assert deployed.kube.objects.keys() == {KUEUE}


def test_what_a_person_left_behind_is_found(deployed: Deployment):
    session = deployed.aws.session()
    client = session.client("logs")
    client.create_log_group(logGroupName="/aws/lambda/skypod-paper-storage-Forgotten")
    client.create_log_group(logGroupName="/aws/lambda/skypod-paperback-storage-Other")
    registry = session.client("sagemaker")
    registry.create_model_package_group(ModelPackageGroupName="skypod-paper-base-0123456789abcdef")
    found = residue.sweep(session, deployed.environment)
    assert [entry.identifier for entry in found] == [
        "/aws/lambda/skypod-paper-storage-Forgotten",
        "skypod-paper-base-0123456789abcdef",
    ]
    client.delete_log_group(logGroupName="/aws/lambda/skypod-paper-storage-Forgotten")
    registry.delete_model_package_group(ModelPackageGroupName="skypod-paper-base-0123456789abcdef")


def test_interrupted_deploy_can_be_destroyed(deployed: Deployment, original: list[str]):
    def interrupt(event: deploy.Event) -> None:
        if event.stack.endswith("storage") and event.status == "started":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deploy.deploy(deployed.aws.env, original, interrupt)
    assert not [
        process
        for process in psutil.Process().children(recursive=True)
        if process.is_running() and any("node_modules" in part for part in process.cmdline())
    ]
    assert residue.sweep(deployed.aws.session(), deployed.environment) != []
    deploy.destroy(deployed.aws.env, original, deployed.events.append)
    assert residue.sweep(deployed.aws.session(), deployed.environment) == []
