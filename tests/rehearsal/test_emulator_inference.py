"""Adapters on the endpoint of the emulated AWS: the stack's own template, changed by the destination."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from serving import archive
from serving.adapter import package
from serving.base import Base
from serving.rollout import stack_parameters
from serving.rollout.destination import wait
from serving.rollout.sagemaker import SageMakerEndpoint, component
from serving.rollout.stack_parameters import StackParameters
from serving.rollout.stack_slots import StackSlots
from stacks.names import ADAPTER_SLOT, BASE, INFERENCE_COMPONENT
from tests.serving.artifacts import language_weights, write_export
from tests.serving.conftest import base_dir as base_dir
from tests.synth.conftest import Synthesized, everything_on, synthesize
from training.errors import ConfigError, DataError, SubstrateError

pytestmark = pytest.mark.emulator
STACK = ENDPOINT = "skypod-everything-inference"


@pytest.fixture(scope="module")
def everything() -> Synthesized:
    return synthesize(everything_on())


@pytest.fixture(scope="module")
def session(aws: EmulatedAws, everything: Synthesized) -> boto3.Session:
    """The endpoint is deployed, with the storage stack's bucket in place of its exports."""
    session = aws.session()
    s3 = session.client("s3")
    for bucket in ("models", "artifacts"):
        s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": session.region_name})
    s3.put_object(Bucket="models", Key="qwen3-vl-8b/config.json", Body=b"{}")
    cloudformation = session.client("cloudformation")
    cloudformation.create_stack(
        StackName=STACK,
        TemplateBody=json.dumps(alone(everything.templates["inference"])),
        Capabilities=["CAPABILITY_NAMED_IAM"],
    )
    cloudformation.get_waiter("stack_create_complete").wait(
        StackName=STACK, WaiterConfig={"Delay": 0.2, "MaxAttempts": 200}
    )
    return session


def alone(template: dict[str, Any]) -> dict[str, Any]:
    """The template without the CDK's check of its bootstrap and without another stack's exports."""
    kept = {key: value for key, value in template.items() if key != "Rules"}
    kept["Parameters"] = {k: v for k, v in template["Parameters"].items() if k != "BootstrapVersion"}
    text = re.sub(r'\{"Fn::ImportValue": "[^"]*Arn[0-9A-F]+"\}', '"arn:aws:s3:::artifacts"', json.dumps(kept))
    return json.loads(re.sub(r'\{"Fn::ImportValue": "[^"]*"\}', '"artifacts"', text))


@pytest.fixture
def destination(session: boto3.Session, monkeypatch) -> SageMakerEndpoint:
    monkeypatch.setattr(stack_parameters, "_POLL_S", 0.05)
    parameters = StackParameters(session.client("cloudformation"), STACK, INFERENCE_COMPONENT)
    slots = StackSlots(parameters, ADAPTER_SLOT)
    s3 = session.client("s3")
    return SageMakerEndpoint(
        session, ENDPOINT, "maze", slots, lambda folder: archive.upload(folder, s3, "artifacts", "adapters")
    )


@pytest.fixture
def folders(base_dir: Path, tmp_path: Path) -> list[Path]:
    """Five packaged adapters: one more than the stack has parameters."""
    made = []
    for seed in range(5):
        export = write_export(tmp_path / f"export-{seed}", language_weights(Base.read(base_dir), seed=seed))
        adapter = package(export, tmp_path / "packed", base_dir=base_dir, run_id="r", evaluation_digest="e")
        made.append(tmp_path / "packed" / adapter.name)
    return made


@pytest.fixture(autouse=True)
def emptied(destination: SageMakerEndpoint) -> Iterator[None]:
    yield
    for name in destination.loaded():
        destination.unload(name)


def updates(session: boto3.Session) -> int:
    events = session.client("cloudformation").describe_stack_events(StackName=STACK)["StackEvents"]
    return sum(
        event["LogicalResourceId"] == STACK and event["ResourceStatus"] == "UPDATE_IN_PROGRESS"
        for event in events
    )


def components(session: boto3.Session, name: str) -> list[dict[str, Any]]:
    listed = session.client("sagemaker").list_inference_components()["InferenceComponents"]
    return [one for one in listed if one["InferenceComponentName"] == name]


def test_names_of_components_are_those_of_the_stack(everything: Synthesized):
    assert everything.names.inference_endpoint == ENDPOINT
    assert everything.names.inference_component(BASE) == component(ENDPOINT, None)
    assert everything.names.inference_component("maze-6c576434edc8") == component(
        ENDPOINT, "maze-6c576434edc8"
    )


def test_adapters_come_and_go_beside_each_other_and_again_is_no_harm(session, destination, folders):
    first, second, *_ = folders
    assert destination.loaded() == set()
    destination.load(first)
    destination.load(second)
    assert destination.loaded() == {first.name, second.name}
    before = updates(session)
    destination.load(first)
    destination.unload("maze-000000000000")
    assert updates(session) == before
    sagemaker = session.client("sagemaker")
    made = sagemaker.describe_inference_component(InferenceComponentName=f"{ENDPOINT}-{first.name}")
    assert made["Specification"] == {
        "BaseInferenceComponentName": f"{ENDPOINT}-base",
        "Container": {"ArtifactUrl": f"s3://artifacts/adapters/{first.name}.tar.gz"},
    }
    destination.unload(first.name)
    assert destination.loaded() == {second.name}
    destination.load(first)
    assert destination.loaded() == {first.name, second.name}


def test_there_is_room_for_as_many_as_the_stack_has_parameters(destination, folders):
    for folder in folders[:4]:
        destination.load(folder)
    with pytest.raises(ConfigError, match=rf"no room for {folders[4].name}: .*{folders[0].name}"):
        destination.load(folders[4])
    assert destination.loaded() == {folder.name for folder in folders[:4]}


def test_why_an_adapter_does_not_start_is_told_and_the_others_serve_on(session, destination, folders):
    first, second, *_ = folders
    destination.load(first)
    key = f"adapters/{second.name}.tar.gz"
    session.client("s3").delete_object(Bucket="artifacts", Key=key)
    destination._upload = lambda folder: f"s3://artifacts/{key}"
    with pytest.raises(DataError) as failed:
        destination.load(second)
    assert f"There is nothing at s3://artifacts/{key}" in failed.value.problem
    assert "UPDATE_ROLLBACK_COMPLETE" in failed.value.problem
    assert destination.loaded() == {first.name}


def test_a_component_that_somebody_deleted_is_told(session, destination, folders):
    destination.load(folders[0])
    sagemaker = session.client("sagemaker")
    name = f"{ENDPOINT}-{folders[0].name}"
    sagemaker.delete_inference_component(InferenceComponentName=name)
    assert wait(lambda: not components(session, name), 5)
    with pytest.raises(SubstrateError, match="Could not find inference component"):
        destination.load(folders[0])
    sagemaker.create_inference_component(
        InferenceComponentName=name,
        EndpointName=ENDPOINT,
        Specification={
            "BaseInferenceComponentName": f"{ENDPOINT}-base",
            "Container": {"ArtifactUrl": f"s3://artifacts/adapters/{folders[0].name}.tar.gz"},
        },
    )
    assert wait(lambda: destination.loaded() == {folders[0].name}, 5)


def test_a_parameter_that_names_another_adapter_is_refused_by_the_emulator(session, destination, folders):
    """AWS's answer is not known; the destination never asks for it."""
    first, second, *_ = folders
    destination.load(first)
    archive.upload(second, session.client("s3"), "artifacts", "adapters")
    with pytest.raises(DataError, match="cannot be renamed"):
        destination._slots._change(destination._slots._parameters.read(), "Adapter1", second.name)
    assert destination.loaded() == {first.name}


def test_what_carries_something_else_is_not_deleted(session, destination, folders):
    destination.load(folders[0])
    sagemaker = session.client("sagemaker")
    with pytest.raises(ClientError, match="still has adapters"):
        sagemaker.delete_inference_component(InferenceComponentName=f"{ENDPOINT}-base")
    with pytest.raises(ClientError, match="still has inference components"):
        sagemaker.delete_endpoint(EndpointName=ENDPOINT)


def test_copies_are_scaled_by_a_target_of_the_base(session):
    scaling = session.client("application-autoscaling")
    (target,) = scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    assert target["ResourceId"] == f"inference-component/{ENDPOINT}-base"
    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 2)
