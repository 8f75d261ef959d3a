"""The functions behind our custom resources, against moto's services and a real reply address."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import boto3
import pytest
from moto import mock_aws

from stacks.handlers import bucket_objects, chart_build, node_wait
from stacks.handlers.reply import Done, answer

CONTEXT = SimpleNamespace(invoked_function_arn="arn:aws:lambda:us-west-2:123456789012:function:f")


@pytest.fixture
def replies():
    """A server that CloudFormation's answers and Lambda invocations go to; yields what it received."""
    received: list[dict] = []
    invoked: list[dict] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_PUT(self):
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def do_POST(self):
            """lambda:Invoke of an event."""
            invoked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(202)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield SimpleNamespace(
        url=f"http://127.0.0.1:{server.server_port}/reply", received=received, invoked=invoked
    )
    server.shutdown()
    server.server_close()


@pytest.fixture
def aws(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws(config={"core": {"passthrough": {"urls": [r"http://127\.0\.0\.1.*"]}}}):
        yield


def _event(kind: str, properties: dict, url: str = "", **more) -> dict:
    return {
        "RequestType": kind,
        "ResponseURL": url,
        "StackId": "stack",
        "RequestId": "request",
        "LogicalResourceId": "Resource",
        "ResourceProperties": properties,
        **({} if kind == "Create" else {"PhysicalResourceId": "bucket/objects"}),
        **more,
    }


def test_success_and_its_attributes_are_reported(replies):
    answer(_event("Create", {}, replies.url), None, lambda event, context: Done("name", {"Key": "value"}))
    (reply,) = replies.received
    assert reply["Status"] == "SUCCESS"
    assert (reply["PhysicalResourceId"], reply["Data"]) == ("name", {"Key": "value"})
    assert (reply["StackId"], reply["RequestId"], reply["LogicalResourceId"]) == (
        "stack",
        "request",
        "Resource",
    )


def test_a_failure_is_reported_with_its_reason_and_never_swallowed(replies):
    def fail(event, context):
        raise ValueError("x" * 5_000)

    answer(_event("Create", {}, replies.url), None, fail)
    (reply,) = replies.received
    assert reply["Status"] == "FAILED"
    assert reply["Reason"].startswith("ValueError: xxx")
    assert len(json.dumps(reply)) < 4_096
    assert reply["PhysicalResourceId"].startswith("failed-")


def _objects(bucket: str) -> dict[str, str]:
    client = boto3.client("s3")
    listed = client.list_objects_v2(Bucket=bucket).get("Contents", [])
    return {o["Key"]: client.get_object(Bucket=bucket, Key=o["Key"])["Body"].read().decode() for o in listed}


def _bucket() -> str:
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    client.put_bucket_versioning(Bucket="bucket", VersioningConfiguration={"Status": "Enabled"})
    return "bucket"


def _properties(objects: dict, *, empty: bool = True) -> dict:
    return {"Bucket": "bucket", "Objects": json.dumps(objects), "EmptyOnDelete": str(empty).lower()}


def test_objects_are_put_replaced_and_removed(aws, replies):
    bucket = _bucket()
    first, second = _properties({"a": "1", "b": "2"}), _properties({"b": "3"})
    bucket_objects.handler(_event("Create", first, replies.url), CONTEXT)
    assert _objects(bucket) == {"a": "1", "b": "2"}
    bucket_objects.handler(_event("Update", second, replies.url, OldResourceProperties=first), CONTEXT)
    assert _objects(bucket) == {"b": "3"}
    assert [reply["Status"] for reply in replies.received] == ["SUCCESS", "SUCCESS"]
    assert len({reply["PhysicalResourceId"] for reply in replies.received}) == 1


def test_a_versioned_bucket_can_be_deleted_after_it_was_emptied(aws, replies):
    bucket = _bucket()
    client = boto3.client("s3")
    for number in range(3):
        client.put_object(Bucket=bucket, Key="same", Body=str(number).encode())
    client.delete_object(Bucket=bucket, Key="same")
    bucket_objects.handler(_event("Delete", _properties({}), replies.url), CONTEXT)
    client.delete_bucket(Bucket=bucket)
    bucket_objects.handler(_event("Delete", _properties({}), replies.url), CONTEXT)
    assert [reply["Status"] for reply in replies.received] == ["SUCCESS", "SUCCESS"]


def test_a_bucket_to_keep_is_left_alone(aws, replies):
    bucket = _bucket()
    boto3.client("s3").put_object(Bucket=bucket, Key="run", Body=b"1")
    bucket_objects.handler(_event("Delete", _properties({}, empty=False), replies.url), CONTEXT)
    assert _objects(bucket) == {"run": "1"}


def test_missing_nodes_are_named_with_what_they_say():
    nodes = [
        {"InstanceGroupName": "head", "InstanceStatus": {"Status": "Running"}},
        {"InstanceGroupName": "gpu", "InstanceStatus": {"Status": "Running"}},
        {"InstanceGroupName": "gpu", "InstanceStatus": {"Status": "Failure", "Message": "no capacity"}},
    ]
    (sentence,) = node_wait._missing({"head": 1, "gpu": 3}, nodes)
    assert sentence == "group gpu: 1 of 3 running (Failure no capacity)"
    assert node_wait._missing({"head": 1, "gpu": 1}, nodes) == []


def _cluster_without_gpu_nodes() -> str:
    boto3.client("sagemaker").create_cluster(
        ClusterName="skypod-test",
        InstanceGroups=[
            {
                "InstanceGroupName": "head",
                "InstanceType": "ml.p4d.24xlarge",
                "InstanceCount": 1,
                "ThreadsPerCore": 1,
                "ExecutionRole": "arn:aws:iam::123456789012:role/node",
                "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-x/lifecycle", "OnCreate": "on_create.sh"},
            }
        ],
    )
    return "skypod-test"


def _wait(cluster: str, timeout_s: int) -> dict[str, str]:
    groups = json.dumps({"head": 1, "gpu": 3})
    return {"ClusterName": cluster, "Groups": groups, "TimeoutSeconds": str(timeout_s)}


def test_a_long_wait_is_handed_to_the_next_invocation_with_its_deadline(aws, replies, monkeypatch):
    monkeypatch.setattr(node_wait, "_TURN_S", -1)
    wait = _wait(_cluster_without_gpu_nodes(), 3_000)
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", replies.url.removesuffix("/reply"))
    node_wait.handler(_event("Create", wait, replies.url), CONTEXT)
    node_wait.handler(replies.invoked[0], CONTEXT)
    first, second = replies.invoked
    assert replies.received == []
    assert first == second
    assert first["WaitUntil"] == pytest.approx(time.time() + 3_000, abs=60)


def test_a_wait_that_ends_without_nodes_fails_with_the_group(aws, replies):
    wait = _wait(_cluster_without_gpu_nodes(), 0)
    node_wait.handler(_event("Create", wait, replies.url), CONTEXT)
    (reply,) = replies.received
    assert reply["Status"] == "FAILED"
    assert "group gpu: 0 of 3 running" in reply["Reason"]
    assert "quota" in reply["Reason"]


def test_the_removal_of_a_chart_whose_project_is_gone_succeeds(aws, replies):
    properties = {"Project": "gone", "Variables": json.dumps({"RELEASE": "kuberay-operator"})}
    chart_build.handler(_event("Delete", properties, replies.url), CONTEXT)
    chart_build.handler(_event("Create", properties, replies.url), CONTEXT)
    assert [reply["Status"] for reply in replies.received] == ["SUCCESS", "FAILED"]
