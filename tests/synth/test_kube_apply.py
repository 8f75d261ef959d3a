"""The function that applies Kubernetes objects, against the emulated EKS and the Kubernetes stand-in."""

import json
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import boto3
import kubernetes
import pytest

from cdk_app import kube
from rehearsal.aws.process import EmulatedAws
from rehearsal.kube.process import KubeStandIn
from stacks.handlers import kube_apply
from stacks.manifests import storage
from tests.synth.test_handlers import CONTEXT, _event, replies

pytestmark = pytest.mark.emulator
__all__ = ["replies"]
CLUSTER = "skypod-test"
TEMPLATE = {
    "Resources": {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}},
        **{
            f"Subnet{zone}": {
                "Type": "AWS::EC2::Subnet",
                "Properties": {
                    "VpcId": {"Ref": "Vpc"},
                    "CidrBlock": f"10.0.{number}.0/24",
                    "AvailabilityZone": f"us-west-2{zone}",
                },
            }
            for number, zone in enumerate("ab")
        },
        "Role": {
            "Type": "AWS::IAM::Role",
            "Properties": {
                "AssumeRolePolicyDocument": {
                    "Version": "2012-10-17",
                    "Statement": [
                        {
                            "Effect": "Allow",
                            "Principal": {"Service": "eks.amazonaws.com"},
                            "Action": "sts:AssumeRole",
                        }
                    ],
                }
            },
        },
        "Cluster": {
            "Type": "AWS::EKS::Cluster",
            "Properties": {
                "Name": CLUSTER,
                "Version": "1.35",
                "RoleArn": {"Fn::GetAtt": ["Role", "Arn"]},
                "ResourcesVpcConfig": {"SubnetIds": [{"Ref": "Subneta"}, {"Ref": "Subnetb"}]},
                "AccessConfig": {
                    "AuthenticationMode": "API",
                    "BootstrapClusterCreatorAdminPermissions": True,
                },
            },
        },
    }
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def substrate(tmp_path_factory):
    """Emulated AWS with one EKS cluster; yields its environment and an ordinary Kubernetes client."""
    folder = tmp_path_factory.mktemp("substrate")
    port = _free_port()
    stand_in = KubeStandIn(
        folder / "kube",
        port=_free_port(),
        train_python=Path(sys.executable),
        shared_dir=folder / "shared",
        aws_url=f"http://127.0.0.1:{port}",
    )
    stand_in.start()
    try:
        aws = EmulatedAws(
            folder / "aws", port=port, kube_endpoint=stand_in.endpoint, kube_ca_pem=stand_in.ca_pem
        )
        aws.start()
        try:
            session = aws.session()
            formation = session.client("cloudformation")
            formation.create_stack(
                StackName="cluster", TemplateBody=json.dumps(TEMPLATE), Capabilities=["CAPABILITY_IAM"]
            )
            formation.get_waiter("stack_create_complete").wait(
                StackName="cluster", WaiterConfig={"Delay": 1, "MaxAttempts": 20}
            )
            api = kubernetes.client.CoreV1Api(kube.connect(session, CLUSTER))
            yield SimpleNamespace(env=aws.env, core=api)
        finally:
            aws.stop()
    finally:
        stand_in.stop()


@pytest.fixture(autouse=True)
def as_function(substrate, monkeypatch):
    """The environment of a Lambda in the emulated account."""
    for name, value in substrate.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)


def _objects(namespace: str, accounts: tuple[str, ...]) -> list[dict]:
    return storage.build(
        namespace=namespace,
        file_system_id="fs-0123456789abcdef0",
        file_system_dns="fs.example",
        file_system_mount_name="abcdefgh",
        capacity_gib=1200,
        service_accounts=accounts,
    )


def _properties(manifests: list[dict]) -> dict[str, str]:
    return {"Cluster": CLUSTER, "Manifests": json.dumps(manifests)}


def _accounts(core, namespace: str) -> set[str]:
    found = core.list_namespaced_service_account(namespace).items
    return {account.metadata.name for account in found} - {"default"}


def _namespaces(core) -> set[str]:
    return {item.metadata.name for item in core.list_namespace().items}


def test_objects_are_applied_replaced_and_removed(substrate, replies):
    core = substrate.core
    first = _properties(_objects("maze", ("trainer", "old")))
    second = _properties(_objects("maze", ("trainer", "new")))
    kube_apply.handler(_event("Create", first, replies.url), CONTEXT)
    assert replies.received[-1]["Status"] == "SUCCESS", replies.received[-1]
    assert _accounts(core, "maze") == {"trainer", "old"}
    kube_apply.handler(_event("Update", second, replies.url, OldResourceProperties=first), CONTEXT)
    assert replies.received[-1]["Status"] == "SUCCESS", replies.received[-1]
    assert _accounts(core, "maze") == {"trainer", "new"}
    kube_apply.handler(_event("Delete", second, replies.url), CONTEXT)
    assert replies.received[-1]["Status"] == "SUCCESS", replies.received[-1]
    assert "maze" not in _namespaces(core)
    assert core.list_persistent_volume().items == []


def test_a_refused_object_fails_with_its_name_and_the_api_servers_reason(substrate, replies):
    manifests = _objects("wrong", ("trainer",))
    manifests[2]["spec"]["accessModus"] = ["ReadWriteMany"]
    kube_apply.handler(_event("Create", _properties(manifests), replies.url), CONTEXT)
    failure = replies.received[-1]
    assert failure["Status"] == "FAILED"
    assert "PersistentVolumeClaim shared" in failure["Reason"]
    assert "accessModus" in failure["Reason"]
    assert "wrong" not in _namespaces(substrate.core)
    rollback = _event("Delete", _properties(manifests), replies.url)
    kube_apply.handler(rollback | {"PhysicalResourceId": failure["PhysicalResourceId"]}, CONTEXT)
    assert replies.received[-1]["Status"] == "SUCCESS", replies.received[-1]
    assert "wrong" not in _namespaces(substrate.core)


def test_a_refused_first_apply_and_its_rollback_leave_what_others_had_made(substrate, replies):
    theirs = _properties(_objects("theirs", ("trainer",)))
    kube_apply.handler(_event("Create", theirs, replies.url), CONTEXT)
    assert replies.received[-1]["Status"] == "SUCCESS", replies.received[-1]
    ours = sorted(
        _objects("theirs", ("trainer", "new")), key=lambda one: one["kind"] == "PersistentVolumeClaim"
    )
    ours[-1]["spec"]["accessModus"] = ["ReadWriteMany"]
    kube_apply.handler(_event("Create", _properties(ours), replies.url), CONTEXT)
    failure = replies.received[-1]
    assert (failure["Status"], "accessModus" in failure["Reason"]) == ("FAILED", True)
    assert _accounts(substrate.core, "theirs") == {"trainer"}
    rollback = _event("Delete", _properties(ours), replies.url)
    kube_apply.handler(rollback | {"PhysicalResourceId": failure["PhysicalResourceId"]}, CONTEXT)
    assert replies.received[-1]["Status"] == "SUCCESS", replies.received[-1]
    assert _accounts(substrate.core, "theirs") == {"trainer"}
    kube_apply.handler(_event("Delete", theirs, replies.url), CONTEXT)
    assert "theirs" not in _namespaces(substrate.core)


def test_objects_of_a_cluster_that_is_gone_are_gone(replies):
    properties = _properties(_objects("maze", ())) | {"Cluster": "never-made"}
    kube_apply.handler(_event("Delete", properties, replies.url), CONTEXT)
    assert replies.received[-1]["Status"] == "SUCCESS"
    kube_apply.handler(_event("Create", properties, replies.url), CONTEXT)
    assert replies.received[-1]["Status"] == "FAILED"


def test_a_cluster_that_is_deleted_through_its_own_api_takes_its_security_group_along():
    eks, ec2 = boto3.client("eks"), boto3.client("ec2")
    group = eks.describe_cluster(name=CLUSTER)["cluster"]["resourcesVpcConfig"]["clusterSecurityGroupId"]

    def there() -> set[str]:
        return {found["GroupId"] for found in ec2.describe_security_groups()["SecurityGroups"]}

    assert group in there()
    eks.delete_cluster(name=CLUSTER)
    assert group not in there()
