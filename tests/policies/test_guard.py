"""Our own Guard rules: every template passes, and each rule finds what it is for."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest

from cdk_app import app as cdk_application
from cdk_app import guard, names, settings
from stacks.environment import Environment
from tests.synth.conftest import ROOT, everything_on

CONTEXT = json.loads((ROOT / "cdk.json").read_text())["context"]
ALLOWED = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b"}
EVERYBODY = {"AWS": "*"}
ROLE = "arn:aws:iam::123456789012:role/r"
LOOPBACK = "https://127.0.0.1:4566"


def policy(**statement: Any) -> tuple[str, dict[str, Any]]:
    return "AWS::IAM::Policy", {"PolicyName": "p", "Roles": ["r"], "PolicyDocument": document(**statement)}


def document(**statement: Any) -> dict[str, Any]:
    kept = {key: value for key, value in (ALLOWED | statement).items() if value is not None}
    return {"Version": "2012-10-17", "Statement": [kept]}


def role(principal: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    trust = document(Action="sts:AssumeRole", Resource=None, Principal=principal)
    return "AWS::IAM::Role", {"AssumeRolePolicyDocument": trust, **more}


def function(**variables: Any) -> tuple[str, dict[str, Any]]:
    return "AWS::Lambda::Function", {
        "Code": {"ZipFile": "x"},
        "Role": ROLE,
        "Environment": {"Variables": variables},
    }


def build(value: Any) -> tuple[str, dict[str, Any]]:
    variables = [{"Name": "A", "Value": {"Ref": "AWS::Region"}}, {"Name": "B", "Value": value}]
    return "AWS::CodeBuild::Project", {
        "ServiceRole": ROLE,
        "Artifacts": {"Type": "NO_ARTIFACTS"},
        "Source": {"Type": "NO_SOURCE"},
        "Environment": {
            "Image": "i",
            "Type": "LINUX_CONTAINER",
            "ComputeType": "BUILD_GENERAL1_SMALL",
            "EnvironmentVariables": variables,
        },
    }


def group(**way_in: Any) -> tuple[str, dict[str, Any]]:
    return "AWS::EC2::SecurityGroup", {"GroupDescription": "g", "SecurityGroupIngress": [way_in]}


LIST_AND_READ = ["ec2:DescribeSubnets", "s3:GetObject"]
BAD = {
    "buckets_are_sealed": [("AWS::S3::Bucket", {})],
    "file_systems_are_sealed": [("AWS::FSx::FileSystem", {"FileSystemType": "LUSTRE", "SubnetIds": ["s"]})],
    "topics_are_sealed": [("AWS::SNS::Topic", {})],
    "keys_rotate": [("AWS::KMS::Key", {"KeyPolicy": document(Principal={"Service": "s"})})],
    "images_cannot_be_replaced": [("AWS::ECR::Repository", {"ImageTagMutability": "MUTABLE"})],
    "control_planes_are_guarded": [
        ("AWS::EKS::Cluster", {"RoleArn": ROLE, "ResourcesVpcConfig": {"SubnetIds": ["a", "b"]}})
    ],
    "nothing_gets_a_public_address": [("AWS::EC2::Subnet", {"VpcId": "v", "MapPublicIpOnLaunch": True})],
    "groups_let_in_no_addresses": [
        group(IpProtocol="-1", CidrIp="0.0.0.0/0"),
        group(IpProtocol="-1", CidrIpv6="::/0"),
    ],
    "ways_in_are_from_groups": [
        ("AWS::EC2::SecurityGroupIngress", {"GroupId": "g", "IpProtocol": "-1", "CidrIp": "10.0.0.0/8"})
    ],
    "no_front_to_the_internet": [("AWS::Lambda::Url", {"AuthType": "NONE", "TargetFunctionArn": "f"})],
    "functions_call_no_loopback": [function(A={"Ref": "AWS::Region"}, URL=LOOPBACK)],
    "builds_call_no_loopback": [build(LOOPBACK)],
    "all_resources_only_where_nothing_is_narrower": [
        policy(Resource="*"),
        policy(Action=LIST_AND_READ, Resource="*"),
        policy(Resource=["arn:aws:s3:::b", "*"]),
    ],
    "rights_are_named": [
        policy(Action="*"),
        policy(Action=["s3:*"]),
        policy(Action=None, NotAction="s3:*"),
        policy(Resource=None, NotResource="arn:aws:s3:::b"),
    ],
    "roles_are_for_somebody": [
        role("*"),
        role(EVERYBODY),
        role({"Service": "s"}, Policies=[{"PolicyName": "p", "PolicyDocument": document()}]),
    ],
    "nothing_is_for_everybody": [
        ("AWS::S3::BucketPolicy", {"Bucket": "b", "PolicyDocument": document(Principal=EVERYBODY)}),
        ("AWS::SNS::TopicPolicy", {"Topics": ["t"], "PolicyDocument": document(Principal="*")}),
    ],
}
GOOD = [
    policy(),
    policy(Resource={"Fn::Sub": "arn:aws:s3:::b/*"}),
    policy(Action=["ec2:DescribeSubnets", "ecr:GetAuthorizationToken"], Resource="*"),
    policy(Effect="Deny", Action="*", Resource="*"),
    role({"Service": "s"}),
    function(A={"Ref": "AWS::Region"}),
    build("b"),
    group(IpProtocol="-1", SourceSecurityGroupId="g"),
    ("AWS::S3::BucketPolicy", {"Bucket": "b", "PolicyDocument": document(Effect="Deny", Principal="*")}),
]


def findings(app: cdk.App, out: Path) -> set[tuple[str, str]]:
    """(rule, path of the construct) of all that the rules find in the app."""
    cdk.Validations.of(app).add_plugins(guard.validator(own_rules_only=True))
    with suppress(RuntimeError):  # the report says more than the error
        app.synth()
    report = out / "validation-report.json"
    plugins = json.loads(report.read_text())["pluginReports"] if report.exists() else []
    return {
        (violation["ruleName"], construct["constructPath"])
        for plugin in plugins
        for violation in plugin["violations"]
        for construct in violation["violatingConstructs"]
    }


def new_app(out: Path) -> cdk.App:
    return cdk.App(context=CONTEXT, builtin_cloud_formation_validation=False, outdir=str(out))


@pytest.mark.slow
@pytest.mark.parametrize("environment", [settings.load("production"), everything_on()], ids=lambda e: e.name)
def test_every_template_keeps_the_rules(environment: Environment, tmp_path: Path):
    """Those of paper and dev are synthesized with the rules by test_command_line."""
    app = new_app(tmp_path)
    cdk_application.build(app, environment, names.NO_ACCOUNT)
    assert findings(app, tmp_path) == set()


@pytest.mark.slow
def test_each_rule_finds_what_it_is_for_and_nothing_else(tmp_path: Path):
    app = new_app(tmp_path)
    stack = cdk.Stack(app, "s")
    expected = set()
    for rule, resources in BAD.items():
        for number, (kind, properties) in enumerate(resources):
            cdk.CfnResource(stack, f"{rule}-{number}", type=kind, properties=properties)
            expected.add((rule, f"s/{rule}-{number}"))
    for number, (kind, properties) in enumerate(GOOD):
        cdk.CfnResource(stack, f"good-{number}", type=kind, properties=properties)
    text = "".join(file.read_text() for file in guard.RULES.glob("*.guard"))
    rules = set(re.findall(r"(?m)^rule (\w+)", text))
    found = {finding for finding in findings(app, tmp_path) if finding[0] in rules}
    assert found == expected
    assert rules == BAD.keys()


@pytest.mark.slow
def test_synth_itself_fails_for_a_broken_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def with_an_open_bucket(app: cdk.App, *_: Any) -> None:
        cdk.CfnResource(cdk.Stack(app, "s"), "open", type="AWS::S3::Bucket")

    app = new_app(tmp_path)
    monkeypatch.setattr(cdk_application, "build", with_an_open_bucket)
    monkeypatch.setattr(cdk, "App", lambda **_: app)
    monkeypatch.delenv("CDK_VALIDATION", raising=False)
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        cdk_application.main()
    assert "buckets_are_sealed" in (tmp_path / "validation-report.json").read_text()
