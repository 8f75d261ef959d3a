"""Reading the outputs of deployed stacks, and saying which stack or output is missing."""

import json
from dataclasses import fields

import boto3
import pytest
from moto import mock_aws

from cdk_app import names, outputs, settings
from stacks.outputs import Outputs, cloudformation_name
from training.errors import SubstrateError

PAPER = settings.load("paper")
NAMES = names.of(PAPER, "123456789012")
OPTIONAL = {"grafana_workspace_id", "grafana_endpoint", "dashboards_folder"}


@pytest.fixture
def session(monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield boto3.Session(region_name=PAPER.region)


def _deploy(session: boto3.Session, *, without: tuple[str, ...] = (), stacks=NAMES.stacks) -> None:
    """Stacks that hold nothing but the outputs of the contract, each with its field's name as value."""
    client = session.client("cloudformation")
    for part, stack in zip(PAPER.parts, NAMES.stacks, strict=True):
        if stack not in stacks:
            continue
        found = {
            cloudformation_name(field.name): {"Value": field.name}
            for field in fields(Outputs)
            if field.metadata.get("stack") == part and field.name not in without
        }
        template = {
            "Resources": {"Topic": {"Type": "AWS::SNS::Topic", "Properties": {"TopicName": part}}},
            "Outputs": found,
        }
        client.create_stack(StackName=stack, TemplateBody=json.dumps(template))


def test_every_field_is_read_from_its_stack(session):
    _deploy(session)
    found = outputs.read(session, PAPER)
    assert (found.region, found.account, found.namespace) == ("us-west-2", "123456789012", "skypod")
    for field in fields(Outputs):
        part = field.metadata.get("stack")
        if part:
            assert getattr(found, field.name) == (field.name if part in PAPER.parts else "")


def test_grafana_may_be_absent(session):
    _deploy(session, without=tuple(OPTIONAL))
    found = outputs.read(session, PAPER)
    assert {getattr(found, name) for name in OPTIONAL} == {""}


def test_a_stack_that_is_not_deployed_is_named(session):
    _deploy(session, stacks=NAMES.stacks[:4])
    with pytest.raises(SubstrateError, match=r"skypod-paper-(images|eks) is not deployed\n.*cdk deploy"):
        outputs.read(session, PAPER)


def test_an_output_that_a_stack_lacks_is_named(session):
    _deploy(session, without=("file_system_dns",))
    with pytest.raises(SubstrateError, match="skypod-paper-lustre has no output FileSystemDns"):
        outputs.read(session, PAPER)
