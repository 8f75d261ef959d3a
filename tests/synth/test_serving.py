"""The RayService in its stack: there for an adapter, and as its parameters say."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from stacks.manifests import gateway, rayservice
from stacks.manifests.rayservice import Served
from tests.synth.conftest import Synthesized, evaluate

SERVED = Served(
    adapter="maze-6c576434edc8",
    base="models/visgym-sft",
    model_id="visgym",
    image=f"123456789012.dkr.ecr.us-west-2.amazonaws.com/skypod-paper/serve@sha256:{'0' * 64}",
    max_lora_rank=64,
    max_model_len=16384,
)


@pytest.fixture
def template(paper: Synthesized) -> dict[str, Any]:
    return paper.templates["serving"]


def objects(template: dict[str, Any], served: Served, of: str = "Service") -> list[dict[str, Any]]:
    manifests = template["Resources"][of]["Properties"]["Manifests"]
    return json.loads(evaluate(manifests, **served.parameters()))


def applied(template: dict[str, Any], served: Served) -> dict[str, Any]:
    (manifest,) = objects(template, served)
    return manifest


def there(template: dict[str, Any], of: str, **parameters: str) -> bool:
    given = {name: str(one["Default"]) for name, one in template["Parameters"].items()}
    condition = template["Conditions"][template["Resources"][of]["Condition"]]
    return evaluate(condition, **given | parameters)


def test_a_first_deploy_starts_no_service_and_an_adapter_does(template):
    assert not there(template, "Service")
    assert there(template, "Service", Adapter=SERVED.adapter)


def test_a_gateway_comes_with_the_first_image_and_stays_while_nothing_is_served(
    paper: Synthesized, everything: Synthesized
):
    assert "Gateway" not in paper.templates["serving"]["Resources"]
    template = everything.templates["serving"]
    assert not there(template, "Gateway")
    assert there(template, "Gateway", Image=SERVED.image, Adapter="")
    assert objects(template, SERVED, "Gateway") == gateway.build(
        everything.environment.serving.gateway,
        namespace="hyperpod-ns-research",
        region="us-west-2",
        image=SERVED.image,
        model_id="visgym",
        balanced=True,
    )
    assert "endpoint" in everything.after["serving"], "its controller takes the load balancer away"


@pytest.mark.parametrize("served", [SERVED, replace(SERVED, max_lora_rank=8, base="b", model_id="m")])
def test_what_is_applied_is_the_manifest_of_the_parameters(template, paper: Synthesized, served):
    assert applied(template, served) == rayservice.build(
        paper.environment, served, region="us-west-2", adapters_uri="s3://artifacts/adapters"
    )
    config = json.loads(applied(template, served)["spec"]["serveConfigV2"])
    engine = config["applications"][0]["args"]["llm_configs"][0]["engine_kwargs"]
    assert (engine["max_lora_rank"], engine["max_model_len"]) == (served.max_lora_rank, 16384)


def test_the_stack_has_a_parameter_for_each_thing_that_is_served(template):
    parameters = template["Parameters"]
    assert set(SERVED.parameters()) == parameters.keys() - {"BootstrapVersion"}
    for name, value in SERVED.parameters().items():
        if parameters[name]["Type"] == "String":
            assert re.fullmatch(parameters[name]["AllowedPattern"], value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Adapter", "maze"),
        ("Adapter", 'maze-6c576434edc8"'),
        ("Base", "../secrets"),
        ("Base", "models/../../secrets"),
        ("Base", "/etc"),
        ("Base", 'x", "y": "z'),
        ("ModelId", ""),
        ("ModelId", "a\\"),
        ("Image", "skypod-paper/serve:latest"),
        ("Image", f"skypod-paper/serve@sha256:{'0' * 63}"),
        ("Image", f'"@sha256:{"0" * 64}'),
    ],
)
def test_a_parameter_refuses_what_would_break_out_of_the_manifest(template, name, value):
    assert not re.fullmatch(template["Parameters"][name]["AllowedPattern"], value)


def test_an_adapter_without_a_base_or_an_image_is_refused_before_anything_changes(template):
    rule = template["Rules"]["Whole"]
    given = SERVED.parameters()
    assert evaluate(rule["RuleCondition"], **given)
    assert not evaluate(rule["RuleCondition"], **given | {"Adapter": ""})
    for missing in ("Base", "Image"):
        holds = [evaluate(one["Assert"], **given | {missing: ""}) for one in rule["Assertions"]]
        assert holds.count(False) == 1, missing
    assert all(evaluate(one["Assert"], **given) for one in rule["Assertions"])


def test_the_right_to_promote_is_none_to_change_the_stack_of_the_service(paper: Synthesized):
    """With a template of one's own its custom resources would do anything in the cluster."""
    policy = paper.one("AWS::IAM::ManagedPolicy")["Properties"]["PolicyDocument"]["Statement"]
    assert "cloudformation" not in str(policy)
