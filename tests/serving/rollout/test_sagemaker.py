"""Promotion to a SageMaker endpoint: the same steps, by signed requests to inference components.

What its stack does to the components is tested on the emulated AWS, in tests/rehearsal.
"""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.credentials import Credentials
from botocore.stub import Stubber

from serving import aliases
from serving.rollout import sagemaker, stack_parameters
from serving.rollout.promote import promote
from serving.rollout.rollback import roll_back
from serving.rollout.sagemaker import SageMakerEndpoint, component
from serving.rollout.stack_parameters import StackParameters
from serving.rollout.stack_slots import StackSlots
from serving.rollout.traffic import Questioning
from serving.signing import COMPONENT_HEADER
from stacks.names import ADAPTER_SLOT, INFERENCE_COMPONENT
from tests.serving.rollout.conftest import make_questions
from tests.serving.rollout.engine import MODEL_ID, Engine
from training.errors import ConfigError, DataError, SubstrateError

ENDPOINT = STACK = "skypod-paper-inference"
ADDRESS = "s3://artifacts/adapters/{}.tar.gz"


class Components:
    """The endpoint's components in place of SageMaker and the stack; an engine answers for them."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.made: dict[str, dict[str, Any]] = {component(ENDPOINT, None): {}}

    def fill(self, name: str) -> None:
        self.made[component(ENDPOINT, name)] = {"Container": {"ArtifactUrl": ADDRESS.format(name)}}
        self.engine.models[f"{MODEL_ID}:{name}"] = self.engine.script(name)

    def clear(self, name: str) -> None:
        if self.made.pop(component(ENDPOINT, name), None):
            self.engine.unload({"lora_name": f"{MODEL_ID}:{name}"})

    def describe_inference_component(self, InferenceComponentName: str) -> dict[str, Any]:
        return {
            "InferenceComponentName": InferenceComponentName,
            "InferenceComponentStatus": "InService",
            "Specification": self.made[InferenceComponentName],
        }

    def get_paginator(self, operation: str) -> Any:
        assert operation == "list_inference_components"
        return self

    def paginate(self, **wanted: str) -> list[dict[str, Any]]:
        assert wanted == {"EndpointNameEquals": ENDPOINT, "StatusEquals": "InService"}
        return [{"InferenceComponents": [{"InferenceComponentName": name}]} for name in self.made]


@pytest.fixture
def components(engine) -> Components:
    return Components(engine)


def destination(components: Components, url: str, **change: Any) -> SageMakerEndpoint:
    clients = {
        "sagemaker": components,
        "sagemaker-runtime": SimpleNamespace(meta=SimpleNamespace(endpoint_url=url)),
    }
    session = SimpleNamespace(
        **{
            "get_credentials": lambda: Credentials("AKIDEXAMPLE", "secret"),
            "region_name": "us-west-2",
            "client": clients.__getitem__,
            **change,
        }
    )
    return SageMakerEndpoint(
        session, ENDPOINT, MODEL_ID, components, lambda folder: ADDRESS.format(folder.name)
    )


@pytest.fixture
def there(site, components, engine, monkeypatch):
    """The site whose destination is the endpoint."""
    monkeypatch.setattr(sagemaker, "_INVOCATION_S", 0.05)
    place = destination(components, engine.url)
    return replace(site, destination=place, traffic=Questioning(place, make_questions()))


def test_an_adapter_is_promoted_replaced_and_taken_back_by_its_component(there, candidate, engine):
    first, second = candidate(1), candidate(2)
    promote(there, first)
    promote(there, second)
    assert there.destination.loaded() == {first.name, second.name}
    roll_back(there)
    assert aliases.read(there.aliases).live == first.name
    assert there.destination.loaded() == {first.name}
    asked = [(path, headers[COMPONENT_HEADER], json.loads(body)) for path, headers, body in engine.received]
    assert {path for path, _, _ in asked} == {f"/endpoints/{ENDPOINT}/invocations"}
    assert {(name, body["model"]) for _, name, body in asked} == {
        (component(ENDPOINT, None), MODEL_ID),
        (component(ENDPOINT, first.name), f"{MODEL_ID}:{first.name}"),
        (component(ENDPOINT, second.name), f"{MODEL_ID}:{second.name}"),
    }


def test_one_that_does_not_answer_as_it_was_trained_is_taken_off_the_endpoint(there, candidate, engine):
    one = candidate(1)
    engine.logprobs[one.name] = -2.0
    with pytest.raises(DataError, match="was not promoted"):
        promote(there, one)
    assert there.destination.loaded() == set()


def test_a_component_with_another_adapters_weights_is_not_taken_for_it(components, candidate, engine):
    one = candidate(1)
    place = destination(components, engine.url)
    components.fill = lambda name: components.made.update(
        {component(ENDPOINT, name): {"Container": {"ArtifactUrl": ADDRESS.format("maze-000000000000")}}}
    )
    with pytest.raises(SubstrateError, match=r"from s3://artifacts/adapters/maze-000000000000.tar.gz"):
        place.load(one.folder)


def test_an_adapter_is_drained_after_the_longest_invocation(components, engine, monkeypatch):
    monkeypatch.setattr(sagemaker, "_INVOCATION_S", 0.05)
    place = destination(components, engine.url)
    assert place.drain("maze-000000000000", 0.05)
    assert not place.drain("maze-000000000000", 0.01)


def test_without_credentials_nothing_can_be_signed(components, engine):
    with pytest.raises(ConfigError, match="no credentials"):
        destination(components, engine.url, get_credentials=lambda: None)


# ---- the stack's parameters


@pytest.fixture
def stack(monkeypatch):
    monkeypatch.setattr(stack_parameters, "_POLL_S", 0.01)
    client = boto3.client(
        "cloudformation", region_name="us-west-2", aws_access_key_id="a", aws_secret_access_key="s"
    )
    with Stubber(client) as stub:
        yield StackSlots(StackParameters(client, STACK, INFERENCE_COMPONENT), ADAPTER_SLOT), stub
        stub.assert_no_pending_responses()


def is_in(stub: Stubber, status: str, *adapters: str) -> None:
    slots = [
        {"ParameterKey": f"{ADAPTER_SLOT}{number}", "ParameterValue": value}
        for number, value in enumerate(adapters, 1)
    ]
    parameters = [{"ParameterKey": "BootstrapVersion", "ParameterValue": "/cdk/version"}, *reversed(slots)]
    found = {"StackName": STACK, "StackStatus": status, "CreationTime": 0, "Parameters": parameters}
    stub.add_response("describe_stacks", {"Stacks": [found]}, {"StackName": STACK})


def expects(stub: Stubber, changed: str, value: str, count: int) -> None:
    others = [f"{ADAPTER_SLOT}{number}" for number in range(count, 0, -1)]
    wanted = {
        "StackName": STACK,
        "UsePreviousTemplate": True,
        "Parameters": [
            {"ParameterKey": changed, "ParameterValue": value},
            *(
                {"ParameterKey": key, "UsePreviousValue": True}
                for key in ["BootstrapVersion", *others]
                if key != changed
            ),
        ],
        "Capabilities": ["CAPABILITY_NAMED_IAM"],
        "ResourceTypes": ["AWS::SageMaker::InferenceComponent"],
    }
    stub.add_response("update_stack", {"StackId": "id"}, wanted)


def test_the_first_empty_parameter_is_filled_and_nothing_else_changed(stack):
    slots, stub = stack
    is_in(stub, "UPDATE_IN_PROGRESS", "one", "", "")  # somebody else's deploy, which is waited for
    is_in(stub, "UPDATE_COMPLETE", "one", "", "")
    expects(stub, "Adapter2", "two", 3)
    is_in(stub, "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", "one", "two", "")
    is_in(stub, "UPDATE_COMPLETE", "one", "two", "")
    slots.fill("two")


def test_parameters_beyond_nine_are_filled_in_their_order(stack):
    slots, stub = stack
    held = [f"a{number}" for number in range(1, 10)] + ["", ""]
    is_in(stub, "CREATE_COMPLETE", *held)
    expects(stub, "Adapter10", "two", 11)
    is_in(stub, "UPDATE_COMPLETE", *held)
    slots.fill("two")


def test_what_is_named_or_not_named_already_updates_nothing(stack):
    slots, stub = stack
    is_in(stub, "UPDATE_COMPLETE", "one", "two", "")
    slots.fill("two")
    is_in(stub, "UPDATE_COMPLETE", "one", "", "")
    slots.clear("two")


def test_a_parameter_is_emptied_for_an_adapter_that_goes(stack):
    slots, stub = stack
    is_in(stub, "UPDATE_COMPLETE", "one", "two")
    expects(stub, "Adapter1", "", 2)
    is_in(stub, "UPDATE_COMPLETE", "", "two")
    slots.clear("one")


@pytest.mark.parametrize(
    ("status", "kind"),
    [("UPDATE_ROLLBACK_COMPLETE", DataError), ("UPDATE_ROLLBACK_FAILED", SubstrateError)],
)
def test_the_first_failure_since_the_update_began_is_the_reason(stack, status, kind):
    slots, stub = stack
    is_in(stub, "UPDATE_COMPLETE", "", "")
    expects(stub, "Adapter1", "one", 2)
    is_in(stub, status, "", "")
    story = [
        ("Adapter2Component", "DELETE_FAILED", "a consequence"),
        ("Adapter1Component", "CREATE_FAILED", "rank 64 exceeds 32"),
        ("Adapter1Component", "CREATE_IN_PROGRESS", ""),
        (STACK, "UPDATE_IN_PROGRESS", "User Initiated"),
        ("Adapter1Component", "CREATE_FAILED", "of an update before"),
    ]
    events = [
        {"LogicalResourceId": who, "ResourceStatus": what, "ResourceStatusReason": why}
        | {"StackId": "id", "EventId": str(number), "StackName": STACK, "Timestamp": 0}
        for number, (who, what, why) in enumerate(story)
    ]
    stub.add_response("describe_stack_events", {"StackEvents": events}, {"StackName": STACK})
    with pytest.raises(kind, match=rf"{STACK} is {status} .*rank 64 exceeds 32"):
        slots.fill("one")


def test_a_refusal_of_aws_is_told(stack):
    slots, stub = stack
    stub.add_client_error("describe_stacks", "ValidationError", f"Stack with id {STACK} does not exist")
    with pytest.raises(SubstrateError, match="does not exist"):
        slots.clear("one")


def test_a_stack_that_never_settles_is_told(stack, monkeypatch):
    slots, stub = stack
    monkeypatch.setattr(stack_parameters, "_UPDATED_S", 0.0)
    is_in(stub, "UPDATE_IN_PROGRESS", "")
    with pytest.raises(SubstrateError, match="UPDATE_IN_PROGRESS"):
        slots.fill("one")
