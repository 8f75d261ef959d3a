"""The endpoint's stack: what is fixed, what a parameter brings, and which settings are refused."""

import re
from typing import Any

import pytest

from cdk_app import names, settings
from stacks.names import INFERENCE_COMPONENT, Names
from tests.synth.conftest import Synthesized, evaluate
from training.errors import ConfigError

NAME = "maze-6c576434edc8"


@pytest.fixture
def template(everything: Synthesized) -> dict[str, Any]:
    return everything.templates["inference"]


def test_without_the_section_there_is_no_endpoint(paper: Synthesized):
    assert "inference" not in paper.templates
    assert INFERENCE_COMPONENT not in str(paper.templates["serving"])


def test_the_base_is_a_component_of_an_endpoint_that_names_no_model(everything: Synthesized):
    config = everything.one("AWS::SageMaker::EndpointConfig")["Properties"]
    (variant,) = config["ProductionVariants"]
    assert "ModelName" not in variant
    assert config["EnableNetworkIsolation"] is True
    assert variant["ManagedInstanceScaling"] == {
        "Status": "ENABLED",
        "MinInstanceCount": 1,
        "MaxInstanceCount": 2,
    }
    base = everything.templates["inference"]["Resources"]["Base"]["Properties"]
    assert base["InferenceComponentName"] == "skypod-everything-inference-base"
    assert base["VariantName"] == variant["VariantName"]
    assert base["Specification"]["ComputeResourceRequirements"] == {
        "NumberOfAcceleratorDevicesRequired": 1,
        "MinMemoryRequiredInMb": 65536,
    }
    variables = everything.one("AWS::SageMaker::Model")["Properties"]["PrimaryContainer"]["Environment"]
    assert variables["SM_VLLM_MAX_LORAS"] == "4"
    assert variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "true"


def test_a_parameter_brings_its_adapter_and_an_empty_one_none(template):
    slots = [name for name in template["Parameters"] if name.startswith("Adapter")]
    assert slots == ["Adapter1", "Adapter2", "Adapter3", "Adapter4"]
    for slot in slots:
        assert template["Parameters"][slot]["Default"] == ""
        made = template["Resources"][f"{slot}Component"]
        assert made["Type"] == INFERENCE_COMPONENT
        assert made["DependsOn"] == ["Base"]
        condition = template["Conditions"][made["Condition"]]
        assert not evaluate(condition, **{slot: ""})
        assert evaluate(condition, **{slot: NAME})
        properties = made["Properties"]
        assert evaluate(properties["InferenceComponentName"], **{slot: NAME}) == (
            f"skypod-everything-inference-{NAME}"
        )
        specification = properties["Specification"]
        assert specification["BaseInferenceComponentName"] == "skypod-everything-inference-base"
        url = evaluate(specification["Container"]["ArtifactUrl"], **{slot: NAME})
        assert url == f"s3://artifacts/adapters/{NAME}.tar.gz"
        assert not properties.keys() & {"RuntimeConfig", "VariantName"}


@pytest.mark.parametrize(
    ("value", "may"),
    [("", True), (NAME, True), ("base", False), ("6c576434edc8", False), (f"{NAME}-x", False)],
)
def test_a_parameter_takes_what_is_named_by_its_content(template, value, may):
    pattern = template["Parameters"]["Adapter1"]["AllowedPattern"]
    assert bool(re.fullmatch(pattern, value)) is may


def test_no_component_gets_a_name_that_sagemaker_refuses(template):
    pattern = template["Parameters"]["Adapter1"]["AllowedPattern"]
    head = len("skypod-everything-inference-")
    longest = next(n for n in range(64, 12, -1) if re.fullmatch(pattern, "x" * (n - 13) + NAME[-13:]))
    assert head + longest == 63
    named = Names(environment="x" * 16, account=names.NO_ACCOUNT, region="us-west-2")
    assert len(named.inference_component(NAME)) <= 63


def test_copies_follow_the_load_between_the_settings(everything: Synthesized):
    target = everything.one("AWS::ApplicationAutoScaling::ScalableTarget")
    assert target["DependsOn"] == ["Base"]
    properties = target["Properties"]
    assert properties["ResourceId"] == "inference-component/skypod-everything-inference-base"
    assert (properties["MinCapacity"], properties["MaxCapacity"]) == (1, 2)


def test_whoever_promotes_may_change_components_by_the_stack_and_nothing_else(everything: Synthesized):
    policy = everything.one("AWS::IAM::ManagedPolicy")["Properties"]["PolicyDocument"]["Statement"]
    (update,) = [one for one in policy if one["Action"] == "cloudformation:UpdateStack"]
    assert "stack/skypod-everything-inference/*" in str(update["Resource"])
    assert update["Condition"] == {
        "ForAllValues:StringEquals": {"cloudformation:ResourceTypes": [INFERENCE_COMPONENT]},
        "Null": {"cloudformation:ResourceTypes": "false"},
    }
    assert "sagemaker:CreateInferenceComponent" not in str(policy)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"serving.max_adapters": 2}, "needs room for 3"),
        ({"serving.endpoint.max_copies": 1, "serving.endpoint.min_copies": 2}, "below min_copies = 2"),
        ({"region": "us-east-1", "network.zones": ["us-east-1a", "us-east-1b"]}, "in another region"),
        ({"serving.endpoint.image": "vllm:latest"}, "serving.endpoint.image"),
        ({"serving.endpoint.base_uri": "s3://models/"}, "serving.endpoint.base_uri"),
    ],
)
def test_settings_that_cannot_serve_are_refused(everything: Synthesized, change, said):
    endpoint = everything.environment.serving.endpoint.model_dump()
    given = {f"serving.endpoint.{key}": value for key, value in endpoint.items()}
    with pytest.raises(ConfigError, match=re.escape(said)):
        settings.load("dev", given | change)
