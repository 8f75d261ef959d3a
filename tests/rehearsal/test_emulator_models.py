"""Requests and template properties against botocore's models, without a server."""

from __future__ import annotations

import base64
import json

import pytest

from rehearsal.aws import models
from rehearsal.aws.models import ApiError


def test_template_properties_are_converted_like_cloudformation_does():
    properties = {
        "FileSystemType": "LUSTRE",
        "StorageCapacity": "1200",
        "SubnetIds": ["subnet-0123456789abcdef0"],
        "LustreConfiguration": {"EfaEnabled": "true", "PerUnitStorageThroughput": "250"},
    }
    params = models.from_template("fsx", "CreateFileSystem", properties)
    assert params["StorageCapacity"] == 1200
    assert params["LustreConfiguration"] == {"EfaEnabled": True, "PerUnitStorageThroughput": 250}


def test_template_names_and_tag_lists_find_their_members():
    properties = {"ClusterName": "c", "AddonName": "a", "Tags": [{"Key": "k", "Value": "v"}]}
    params = models.from_template("eks", "CreateAddon", properties)
    assert params == {"clusterName": "c", "addonName": "a", "tags": {"k": "v"}}


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"FileSystemTipe": "LUSTRE"}, r"extraneous key \[FileSystemTipe\]"),
        ({"StorageCapacity": "much"}, "'much' is not of type integer"),
        (
            {"LustreConfiguration": {"Deployment": "x"}},
            r"#/LustreConfiguration: extraneous key \[Deployment\]",
        ),
    ],
)
def test_template_mistakes_are_refused(properties: dict, told: str):
    with pytest.raises(ApiError, match=told):
        models.from_template("fsx", "CreateFileSystem", properties)


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"ClusterName": "c", "Orchestrator": {"Kubernetes": {}}}, "Unknown parameter"),
        ({"ClusterName": "c", "NodeRecovery": "Sometimes"}, "enum value set: \\[Automatic, None\\]"),
        ({"ClusterName": "c" * 64}, "above the limit 63"),
        ({}, "ClusterName"),
    ],
)
def test_wrong_input_is_refused(params: dict, told: str):
    with pytest.raises(ApiError, match=told):
        models.check("sagemaker", "CreateCluster", params)


def test_json_protocol_request_is_read():
    headers = {"x-amz-target": "SageMaker.DescribeCluster"}
    read = models.parse_request("sagemaker", "POST", "/", "", headers, b'{"ClusterName": "c"}')
    assert read == ("DescribeCluster", {"ClusterName": "c"})


def test_rest_request_is_read_from_path_query_and_body():
    data = base64.b64encode(b"groups: []").decode()
    body = json.dumps({"data": data}).encode()
    read = models.parse_request("amp", "PUT", "/workspaces/ws-1/rulegroupsnamespaces/a%20b", "", {}, body)
    wanted = {"workspaceId": "ws-1", "name": "a b", "data": b"groups: []"}
    assert read == ("PutRuleGroupsNamespace", wanted)
    assert models.parse_request("amp", "GET", "/workspaces", "alias=x&maxResults=5", {}, b"") == (
        "ListWorkspaces",
        {"alias": "x", "maxResults": 5},
    )


def test_unknown_path_is_refused():
    with pytest.raises(ApiError, match="No operation of amp at GET /nothing") as refused:
        models.parse_request("amp", "GET", "/nothing", "", {}, b"")
    assert refused.value.status == 404


def test_answer_keeps_only_what_the_model_knows():
    answer = {"ruleGroupsNamespace": {"name": "n", "data": b"x", "createdAt": 1.5, "mine": 1}}
    sent = json.loads(models.render("amp", "DescribeRuleGroupsNamespace", answer))
    assert sent == {
        "ruleGroupsNamespace": {"name": "n", "data": base64.b64encode(b"x").decode(), "createdAt": 1.5}
    }
