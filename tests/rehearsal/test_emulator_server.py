"""The emulated AWS as a process, and its refusals: what AWS would not accept, it does not accept either."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import uuid
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.codebuild import NOT_EXECUTED
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.conftest import free_port
from tests.rehearsal.kube_api import KubeApi
from training.errors import SubstrateError

pytestmark = pytest.mark.emulator


def _code(call: Any, **params: Any) -> str:
    with pytest.raises(ClientError) as refused:
        call(**params)
    return refused.value.response["Error"]["Code"]


@pytest.fixture(scope="module")
def ground(aws: EmulatedAws) -> dict[str, str]:
    """A VPC with a subnet, a security group and a role, made through the API."""
    ec2 = aws.session().client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.0.0/24")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="g", Description="g", VpcId=vpc)["GroupId"]
    trust = {"Version": "2012-10-17", "Statement": []}
    iam = aws.session().client("iam")
    role = iam.create_role(RoleName="nodes", AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    return {"subnet": subnet, "group": group, "role": role}


def _cluster(ground: dict[str, str], **changes: Any) -> dict[str, Any]:
    group = {"InstanceGroupName": "gpu", "InstanceType": "ml.g7e.12xlarge", "InstanceCount": 3}
    group |= {"ExecutionRole": ground["role"], **changes.pop("group", {})}
    vpc = {"Subnets": [ground["subnet"]], "SecurityGroupIds": [ground["group"]]}
    return {"ClusterName": "one", "InstanceGroups": [group], "VpcConfig": vpc, **changes}


def test_everything_listens_on_loopback(aws: EmulatedAws):
    bound = {
        connection.laddr.ip
        for process in [psutil.Process(aws.pid), *psutil.Process(aws.pid).children(recursive=True)]
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert bound == {"127.0.0.1"}


def test_caller_identity_is_the_account(aws: EmulatedAws):
    assert aws.session().client("sts").get_caller_identity()["Account"] == aws.account


def test_the_users_own_aws_settings_do_not_matter(aws: EmulatedAws, monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_STS", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert aws.session().client("sts").get_caller_identity()["Account"] == aws.account
    assert aws.session().resource("s3").Bucket("any").name == "any"


def test_hyperpod_grows_and_names_its_nodes(aws: EmulatedAws, ground: dict[str, str]):
    client = aws.session().client("sagemaker")
    client.create_cluster(**_cluster(ground))
    _until(lambda: client.describe_cluster(ClusterName="one")["ClusterStatus"] == "InService")
    before = client.list_cluster_nodes(ClusterName="one")["ClusterNodeSummaries"]
    assert [node["InstanceStatus"]["Status"] for node in before] == ["Running"] * 3
    grown = _cluster(ground, group={"InstanceCount": 5})["InstanceGroups"]
    client.update_cluster(ClusterName="one", InstanceGroups=grown)
    _until(lambda: client.describe_cluster(ClusterName="one")["ClusterStatus"] == "InService")
    after = client.list_cluster_nodes(ClusterName="one")["ClusterNodeSummaries"]
    assert {node["InstanceId"] for node in before} < {node["InstanceId"] for node in after}
    assert _code(client.create_cluster, **_cluster(ground)) == "ResourceInUse"
    client.delete_cluster(ClusterName="one")
    _until(lambda: not client.list_clusters()["ClusterSummaries"])
    assert _code(client.describe_cluster, ClusterName="one") == "ResourceNotFound"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"group": {"InstanceType": "ml.g9.huge"}}, "enum value set"),
        ({"group": {"ExecutionRole": "arn:aws:iam::123456789012:role/nobody"}}, "does not exist"),
        ({"VpcConfig": {"Subnets": ["subnet-0123"], "SecurityGroupIds": ["sg-0123"]}}, "subnet-0123"),
        ({"ClusterName": "no_underscores"}, "regular expression pattern"),
        (
            {
                "group": {
                    "LifeCycleConfig": {
                        "SourceS3Uri": "s3://sagemaker-none/lifecycle",
                        "OnCreate": "on_create.sh",
                    }
                }
            },
            "s3://sagemaker-none/lifecycle/on_create.sh does not exist",
        ),
        (
            {"Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:123456789012:cluster/none"}}},
            "EKS cluster",
        ),
    ],
)
def test_hyperpod_refuses(aws: EmulatedAws, ground: dict[str, str], changes: dict[str, Any], told: str):
    client = aws.session().client("sagemaker")
    with pytest.raises(ClientError, match=told) as refused:
        client.create_cluster(**_cluster(ground, **changes))
    assert refused.value.response["Error"]["Code"] == "ValidationException"
    assert client.list_clusters()["ClusterSummaries"] == []


@pytest.mark.parametrize(
    ("capacity", "throughput", "told"), [(1300, 250, "1200 GiB or a multiple"), (1200, 300, "must be one of")]
)
def test_lustre_refuses(aws: EmulatedAws, ground: dict[str, str], capacity: int, throughput: int, told: str):
    lustre = {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": throughput}
    with pytest.raises(ClientError, match=told):
        aws.session().client("fsx").create_file_system(
            FileSystemType="LUSTRE",
            StorageCapacity=capacity,
            SubnetIds=[ground["subnet"]],
            LustreConfiguration=lustre,
        )


def test_prometheus_keeps_rules_and_refuses_broken_ones(aws: EmulatedAws):
    client = aws.session().client("amp")
    workspace = client.create_workspace(alias="w", tags={"a": "b"})["workspaceId"]
    rules = b"groups:\n- name: g\n  rules:\n  - alert: A\n    expr: up == 0\n"
    client.create_rule_groups_namespace(workspaceId=workspace, name="r", data=rules)
    kept = client.describe_rule_groups_namespace(workspaceId=workspace, name="r")["ruleGroupsNamespace"]
    assert kept["data"] == rules
    broken = b"groups:\n- name: g\n  rules:\n  - alert: A\n"
    code = _code(client.put_rule_groups_namespace, workspaceId=workspace, name="r", data=broken)
    assert code == "ValidationException"
    client.delete_workspace(workspaceId=workspace)
    assert client.list_workspaces()["workspaces"] == []


def test_grafana_needs_a_known_permission_type(aws: EmulatedAws):
    code = _code(
        aws.session().client("grafana").create_workspace,
        accountAccessType="CURRENT_ACCOUNT",
        authenticationProviders=["AWS_SSO"],
        permissionType="MINE",
    )
    assert code == "ValidationException"


BUILDSPEC = "version: 0.2\nphases:\n  build:\n    commands:\n    - docker build .\n"


@pytest.mark.parametrize(
    ("buildspec", "value", "status", "told"),
    [
        (BUILDSPEC, "v1", "SUCCEEDED", NOT_EXECUTED),
        ("version: 0.2\nphases: {}\n", "v1", "FAILED", "no phases"),
        ("version: 0.2\nphases:\n  bild:\n    commands: [x]\n", "v1", "FAILED", "unknown phases"),
        (BUILDSPEC, "", "FAILED", "TAG is empty"),
        (None, "v1", "FAILED", "holds no buildspec.yml"),
    ],
)
def test_build_is_checked_and_says_that_nothing_ran(
    aws: EmulatedAws, buildspec: str | None, value: str, status: str, told: str
):
    session = aws.session()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as source:
        source.writestr("buildspec.yml" if buildspec else "other.txt", buildspec or "")
    s3 = session.client("s3")
    bucket = f"sources-{uuid.uuid4()}"
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": aws.region})
    s3.put_object(Bucket=bucket, Key="a.zip", Body=archive.getvalue())
    client = session.client("codebuild")
    client.create_project(
        name="image",
        source={"type": "S3", "location": f"{bucket}/a.zip"},
        artifacts={"type": "NO_ARTIFACTS"},
        environment={
            "type": "LINUX_CONTAINER",
            "image": "aws/codebuild/standard:7.0",
            "computeType": "BUILD_GENERAL1_SMALL",
            "environmentVariables": [{"name": "TAG", "value": value}],
        },
        serviceRole="arn:aws:iam::123456789012:role/build",
    )
    started = client.start_build(projectName="image")["build"]["id"]
    build = client.batch_get_builds(ids=[started])["builds"][0]
    assert build["buildStatus"] == status
    contexts = [context["message"] for phase in build["phases"] for context in phase.get("contexts", [])]
    assert any(told in message for message in contexts)
    log = session.client("logs").get_log_events(
        logGroupName=build["logs"]["groupName"], logStreamName=build["logs"]["streamName"]
    )
    assert told in log["events"][0]["message"]
    client.delete_project(name="image")
    assert _code(client.start_build, projectName="image") == "ResourceNotFoundException"


def test_stack_with_a_full_bucket_is_not_deleted(aws: EmulatedAws):
    session = aws.session()
    client = session.client("cloudformation")
    bucket = {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": "kept-objects"}}
    client.create_stack(StackName="full", TemplateBody=json.dumps({"Resources": {"Bucket": bucket}}))
    client.get_waiter("stack_create_complete").wait(StackName="full", WaiterConfig={"Delay": 1})
    s3 = session.client("s3")
    s3.put_object(Bucket="kept-objects", Key="a", Body=b"1")
    client.delete_stack(StackName="full")
    _until(lambda: _status(client, "full") == "DELETE_FAILED")
    reasons = [event.get("ResourceStatusReason", "") for event in _events(client, "full")]
    assert any("not empty" in reason for reason in reasons)
    s3.delete_object(Bucket="kept-objects", Key="a")
    client.delete_stack(StackName="full")
    _until(lambda: _status(client, "full") == "gone")


def test_function_runs_here_and_its_idle_process_ends(aws: EmulatedAws, ground: dict[str, str]):
    code = (
        "import boto3\ndef handler(event, context):\n"
        "    return boto3.client('sts').get_caller_identity()['Account']\n"
    )
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as package:
        package.writestr("index.py", code)
    client = aws.session().client("lambda")
    client.create_function(
        FunctionName="who",
        Runtime="python3.12",
        Handler="index.handler",
        Role=ground["role"],
        Code={"ZipFile": archive.getvalue()},
    )
    answer = client.invoke(FunctionName="who")
    assert json.load(answer["Payload"]) == aws.account
    server = psutil.Process(aws.pid)
    assert server.children()
    _until(lambda: not server.children(), timeout_s=30)


def _status(client: Any, stack: str) -> str:
    try:
        return client.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]
    except ClientError:
        return "gone"


def _events(client: Any, stack: str) -> list[dict[str, Any]]:
    return client.describe_stack_events(StackName=stack)["StackEvents"]


def _until(done: Any, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_unimplemented_operations_say_so(aws: EmulatedAws):
    assert _code(aws.session().client("sagemaker").list_hubs) == "NotImplemented"


def test_a_taken_port_is_an_error_with_a_remedy(aws: EmulatedAws, kube: KubeApi, tmp_path: Path):
    second = EmulatedAws(tmp_path, port=aws.port, kube_endpoint=kube.endpoint, kube_ca_pem=kube.ca_pem)
    with pytest.raises(SubstrateError, match=f"Port {aws.port} .* is taken"):
        second.start()


def test_stop_ends_everything_and_frees_the_port(kube: KubeApi, tmp_path: Path):
    port = free_port()
    running = EmulatedAws(tmp_path, port=port, kube_endpoint=kube.endpoint, kube_ca_pem=kube.ca_pem)
    running.start()
    pid = running.pid
    running.stop()
    assert not psutil.pid_exists(pid)
    running.start()
    running.stop()


def test_it_ends_when_its_rehearsal_is_killed(kube: KubeApi, tmp_path: Path):
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom rehearsal.aws.process import EmulatedAws\n"
        "a = EmulatedAws(Path(sys.argv[1]), port=int(sys.argv[2]), kube_endpoint='https://127.0.0.1:1',"
        " kube_ca_pem=Path(sys.argv[3]))\na.start()\nprint(a.pid, flush=True)\ntime.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(free_port()), str(kube.ca_pem)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    server = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    _until(lambda: not psutil.pid_exists(server))
