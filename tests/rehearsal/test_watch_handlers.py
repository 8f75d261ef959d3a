"""The functions behind dashboards, quotas and the idle alarm, in this process against the emulated AWS."""

from __future__ import annotations

import json
import logging
import time
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from stacks.handlers import compute_quota, grafana_client, grafana_push, idle_watch
from stacks.handlers.grafana_client import GrafanaError, connect, leftover_accounts
from tests.rehearsal.kube_api import KubeApi
from tests.synth.test_handlers import _event, replies

pytestmark = pytest.mark.emulator
__all__ = ["replies"]

NAME = "watched"
KUEUE = "/apis/apps/v1/namespaces/kueue-system/deployments/kueue-controller-manager"


@pytest.fixture
def here(aws: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> EmulatedAws:
    """boto3 of this process talks to the emulated AWS."""
    for key, value in aws.env.items():
        monkeypatch.setenv(key, value)
    for module in (compute_quota, grafana_client):
        monkeypatch.setattr(module, "_POLL_S", 0.05)
    return aws


@pytest.fixture(scope="module")
def role(aws: EmulatedAws) -> str:
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    iam = aws.session().client("iam")
    return iam.create_role(RoleName="any", AssumeRolePolicyDocument=trust)["Role"]["Arn"]


@pytest.fixture
def workspace(here: EmulatedAws, role: str) -> dict[str, Any]:
    made = boto3.client("grafana").create_workspace(
        accountAccessType="CURRENT_ACCOUNT",
        authenticationProviders=["AWS_SSO"],
        permissionType="CUSTOMER_MANAGED",
        workspaceRoleArn=role,
    )["workspace"]
    return {"workspaceId": made["id"], "endpoint": made["endpoint"]}


def _content(target: dict[str, Any], *titles: str, source: str = "https://amp") -> dict[str, str]:
    return {
        "Target": json.dumps(target),
        "DataSource": json.dumps(
            {"uid": "s", "name": "s", "type": "prometheus", "access": "proxy", "url": source}
        ),
        "Folder": json.dumps({"uid": "f", "title": "Folder"}),
        "Dashboards": json.dumps([{"uid": title, "title": title, "panels": []} for title in titles]),
    }


def _push(kind: str, properties: dict[str, str], replies: SimpleNamespace, **more: Any) -> dict[str, Any]:
    grafana_push.handler(_event(kind, properties, replies.url, **more), None)
    return replies.received[-1]


def test_dashboards_are_pushed_replaced_and_removed(workspace, replies):
    first = _content(workspace, "one", "two")
    made = _push("Create", first, replies)
    assert made["Status"] == "SUCCESS", made
    name = made["PhysicalResourceId"]
    second = _content(workspace, "two", "three", source="https://other")
    for _ in range(2):  # a repeated update changes nothing
        done = _push("Update", second, replies, OldResourceProperties=first, PhysicalResourceId=name)
        assert (done["Status"], done["PhysicalResourceId"]) == ("SUCCESS", name), done
    with connect(workspace) as grafana:
        found = grafana.call("GET", "/api/search?type=dash-db&folderUIDs=f")
        assert sorted(one["uid"] for one in found) == ["three", "two"]
        assert grafana.get("/api/datasources/uid/s")["url"] == "https://other"
    assert _push("Delete", second, replies, PhysicalResourceId=name)["Status"] == "SUCCESS"
    with connect(workspace) as grafana:
        assert grafana.get("/api/folders/f") is None
        assert grafana.get("/api/datasources/uid/s") is None
        assert grafana.call("GET", "/api/search") == []
    assert leftover_accounts(boto3.client("grafana"), workspace["workspaceId"]) == []


def test_a_push_that_is_refused_says_why_leaves_no_account_and_no_token_in_the_log(
    workspace, replies, caplog, capsys, monkeypatch
):
    keys: list[str] = []
    real = grafana_client.Grafana.__init__
    monkeypatch.setattr(
        grafana_client.Grafana,
        "__init__",
        lambda self, url, token: (keys.append(token), real(self, url, token))[1],
    )
    caplog.set_level(logging.INFO)
    broken = _content(workspace, "one")
    broken["Dashboards"] = json.dumps([{"uid": "un acceptable", "title": "x"}])
    failed = _push("Create", broken, replies)
    assert failed["Status"] == "FAILED"
    assert "400: POST /api/dashboards/db" in failed["Reason"]
    told = json.dumps(replies.received) + caplog.text + "".join(capsys.readouterr())
    assert keys
    assert not any(key in told for key in keys)
    assert leftover_accounts(boto3.client("grafana"), workspace["workspaceId"]) == []
    undone = _push("Delete", broken, replies, PhysicalResourceId=failed["PhysicalResourceId"])
    assert undone["Status"] == "SUCCESS"


def test_an_account_that_a_killed_push_left_goes_with_the_next(workspace, replies):
    client = boto3.client("grafana")
    number = workspace["workspaceId"]
    client.create_workspace_service_account(workspaceId=number, name="skypod-push-dead", grafanaRole="ADMIN")
    client.create_workspace_service_account(workspaceId=number, name="somebodys", grafanaRole="VIEWER")
    assert _push("Create", _content(workspace, "one"), replies)["Status"] == "SUCCESS"
    left = client.list_workspace_service_accounts(workspaceId=number)["serviceAccounts"]
    assert [account["name"] for account in left] == ["somebodys"]


def test_a_workspace_that_is_gone_does_not_keep_the_stack(workspace, replies):
    boto3.client("grafana").delete_workspace(workspaceId=workspace["workspaceId"])
    assert _push("Delete", _content(workspace, "one"), replies)["Status"] == "SUCCESS"


def test_another_grafana_takes_the_token_of_the_secret(workspace, replies):
    client = boto3.client("grafana")
    number = workspace["workspaceId"]
    account = client.create_workspace_service_account(workspaceId=number, name="ci", grafanaRole="ADMIN")
    key = client.create_workspace_service_account_token(
        workspaceId=number, serviceAccountId=account["id"], name="ci", secondsToLive=600
    )["serviceAccountToken"]["key"]
    secret = boto3.client("secretsmanager").create_secret(Name="grafana-token", SecretString=f"{key}\n")
    elsewhere = {"url": workspace["endpoint"], "secretArn": secret["ARN"]}
    assert _push("Create", _content(elsewhere, "one"), replies)["Status"] == "SUCCESS"
    with connect(elsewhere) as grafana:
        assert [one["uid"] for one in grafana.call("GET", "/api/search")] == ["one"]
    client.delete_workspace_service_account(workspaceId=number, serviceAccountId=account["id"])
    with connect(elsewhere) as grafana, pytest.raises(GrafanaError, match="401"):
        grafana.call("GET", "/api/search")


@pytest.fixture(scope="module")
def cluster(aws: EmulatedAws, role: str) -> str:
    """The ARN of a HyperPod cluster with two GPU nodes."""
    client = aws.session().client("sagemaker")
    group = {"InstanceGroupName": "gpu", "InstanceType": "ml.g7e.12xlarge", "InstanceCount": 2}
    made = client.create_cluster(ClusterName=NAME, InstanceGroups=[{**group, "ExecutionRole": role}])
    while client.describe_cluster(ClusterName=NAME)["ClusterStatus"] != "InService":
        time.sleep(0.05)
    return made["ClusterArn"]


@pytest.fixture
def no_eks(here: EmulatedAws, monkeypatch: pytest.MonkeyPatch, kube: KubeApi) -> None:
    """The functions' client without the look-up of the endpoint, which other tests cover."""
    kube.objects.clear()
    kube.objects[KUEUE] = {"status": {"conditions": [{"type": "Available", "status": "True"}]}}

    class Client(compute_quota.KubeClient):
        def __init__(self, cluster_name: str):
            self._resources = {}

        def _call(self, method: str, path: str, body: Any = None, content_type: str = "") -> Any:
            path = path.partition("?")[0]
            if path.endswith("/pods"):
                return {"items": [o for p, o in kube.objects.items() if "/pods/" in p]}
            if path in ("/api/v1", "/apis/apps/v1"):
                kinds = {"/api/v1": ("pods", "Pod"), "/apis/apps/v1": ("deployments", "Deployment")}
                name, kind = kinds[path]
                return {"resources": [{"name": name, "kind": kind, "namespaced": True}]}
            return kube.objects[path]

    for module in (compute_quota, idle_watch):
        monkeypatch.setattr(module, "KubeClient", Client)


def _quota(cluster: str, count: int, name: str = "research") -> dict[str, str]:
    resources = [{"InstanceType": "ml.g7e.12xlarge", "Count": count}]
    settings = {
        "ComputeQuotaConfig": {"ComputeQuotaResources": resources, "PreemptTeamTasks": "Never"},
        "ComputeQuotaTarget": {"TeamName": name, "FairShareWeight": 50},
    }
    tags = json.dumps({"project": "skypod"})
    return {
        "EksCluster": NAME,
        "ClusterArn": cluster,
        "Name": name,
        "Settings": json.dumps(settings),
        "Tags": tags,
    }


def _run(kind: str, properties: dict[str, str], replies: SimpleNamespace, **more: Any) -> dict[str, Any]:
    compute_quota.handler(_event(kind, properties, replies.url, **more), None)
    return replies.received[-1]


def test_a_quota_is_made_changed_and_keeps_its_cluster_until_it_is_gone(cluster, no_eks, replies):
    client = boto3.client("sagemaker")
    first = _quota(cluster, 1)
    quota = _run("Create", first, replies)["PhysicalResourceId"]
    with pytest.raises(ClientError, match="still has a compute quota"):
        client.delete_cluster(ClusterName=NAME)
    second = _quota(cluster, 2)
    done = _run("Update", second, replies, OldResourceProperties=first, PhysicalResourceId=quota)
    assert (done["Status"], done["PhysicalResourceId"]) == ("SUCCESS", quota), done
    (resource,) = client.describe_compute_quota(ComputeQuotaId=quota)["ComputeQuotaConfig"][
        "ComputeQuotaResources"
    ]
    assert resource["Count"] == 2
    for _ in range(2):  # a repeated delete finds nothing
        assert _run("Delete", second, replies, PhysicalResourceId=quota)["Status"] == "SUCCESS"
    assert client.list_compute_quotas()["ComputeQuotaSummaries"] == []


def test_a_quota_that_cannot_be_had_says_why_and_leaves_none(cluster, no_eks, replies, kube, monkeypatch):
    wrong = _quota(cluster, 1)
    wrong["Settings"] = wrong["Settings"].replace("ml.g7e.12xlarge", "ml.g5.xlarge")
    failed = _run("Create", wrong, replies)
    assert failed["Status"] == "FAILED"
    assert "The cluster has no ml.g5.xlarge" in failed["Reason"]
    gone = _run("Delete", wrong, replies, PhysicalResourceId=failed["PhysicalResourceId"])
    assert gone["Status"] == "SUCCESS"
    monkeypatch.setattr(compute_quota, "_KUEUE_PATIENCE_S", 0)
    kube.objects[KUEUE]["status"]["conditions"][0]["status"] = "False"
    waited = _run("Create", _quota(cluster, 1), replies)
    assert "Kueue's controller is not available" in waited["Reason"]
    assert boto3.client("sagemaker").list_compute_quotas()["ComputeQuotaSummaries"] == []


def _pod(name: str, node: str, phase: str = "Running", gpus: str = "2") -> tuple[str, dict[str, Any]]:
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}}
    spec = {"nodeName": node, "containers": [container]}
    return f"/api/v1/namespaces/x/pods/{name}", {"spec": spec, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("pods", "idle"),
    [
        ([], 2),
        ([_pod("a", "n1")], 1),
        ([_pod("a", "n1"), _pod("b", "n1")], 1),
        ([_pod("a", "n1"), _pod("b", "n2")], 0),
        ([_pod("a", "n1", phase="Succeeded"), _pod("b", "n2", gpus="")], 2),
    ],
)
def test_gpu_nodes_without_gpu_pods_are_counted(cluster, no_eks, kube, pods, idle: int):
    kube.objects.update(pods)
    event = {"HyperPodCluster": NAME, "EksCluster": NAME, "GpuGroups": ["gpu"]}
    assert idle_watch.handler(event, None) == {"Running": 2, "Idle": idle}
    (metric,) = boto3.client("cloudwatch").list_metrics(Namespace="Skypod")["Metrics"]
    assert metric["Dimensions"] == [{"Name": "Cluster", "Value": NAME}]
