"""Custom::ComputeQuota: a team's share of a HyperPod cluster; CloudFormation has no type for it.

Properties: EksCluster, ClusterArn, Name, Settings (JSON: what creation and update share) and Tags (JSON).
A quota of another cluster or name is another resource. A create first waits for Kueue, whose webhook would
refuse the quota's objects; a delete waits until the quota is gone, because it keeps the cluster from going.
"""

import json
import time
from typing import Any

import boto3
from botocore.exceptions import ClientError

from .kube_client import TRANSIENT, ApiError, KubeClient
from .reply import Done, answer

_KUEUE = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "kueue-controller-manager", "namespace": "kueue-system"},
}
_KUEUE_PATIENCE_S = 420
_QUOTA_PATIENCE_S = 360
_POLL_S = 2


def handler(event: dict[str, Any], context: Any) -> None:
    answer(event, context, _work)


def _work(event: dict[str, Any], context: Any) -> Done:
    properties = event["ResourceProperties"]
    client = boto3.client("sagemaker")
    kind = event["RequestType"]
    if kind == "Delete":
        _delete(client, event["PhysicalResourceId"])
        return Done(event["PhysicalResourceId"])
    settings = json.loads(properties["Settings"])
    old = event.get("OldResourceProperties", {})
    if kind == "Update" and all(old[key] == properties[key] for key in ("ClusterArn", "Name")):
        quota = event["PhysicalResourceId"]
        version = client.describe_compute_quota(ComputeQuotaId=quota)["ComputeQuotaVersion"]
        client.update_compute_quota(ComputeQuotaId=quota, TargetVersion=version, **settings)
        _wait(client, quota, "Updated")
        return Done(quota)
    _await_kueue(properties["EksCluster"])
    quota = client.create_compute_quota(
        Name=properties["Name"],
        ClusterArn=properties["ClusterArn"],
        Tags=[{"Key": key, "Value": value} for key, value in json.loads(properties["Tags"]).items()],
        **settings,
    )["ComputeQuotaId"]
    try:
        _wait(client, quota, "Created")
    except Exception:
        # CloudFormation does not learn the id of a resource that failed, so nobody else would delete it.
        client.delete_compute_quota(ComputeQuotaId=quota)
        raise
    return Done(quota)


def _await_kueue(cluster: str) -> None:
    deadline = time.monotonic() + _KUEUE_PATIENCE_S
    client = KubeClient(cluster)
    while True:
        try:
            found = client.get(_KUEUE)
            seen = "is not there" if found is None else "is not available"
            conditions = (found or {}).get("status", {}).get("conditions", [])
            if any(c["type"] == "Available" and c["status"] == "True" for c in conditions):
                return
        except ApiError as error:
            if error.status not in TRANSIENT:
                raise
            seen = f"cannot be read ({error})"
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"Kueue's controller {seen} after {_KUEUE_PATIENCE_S} s; see the pods in kueue-system and "
                "the add-on amazon-sagemaker-hyperpod-taskgovernance"
            )
        time.sleep(_POLL_S)


def _wait(client: Any, quota: str, wanted: str) -> None:
    deadline = time.monotonic() + _QUOTA_PATIENCE_S
    while True:
        found = client.describe_compute_quota(ComputeQuotaId=quota)
        if found["Status"] == wanted:
            return
        if found["Status"].endswith("Failed"):
            raise RuntimeError(
                f"compute quota {quota} is {found['Status']}: {found.get('FailureReason', '')}"
            )
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"compute quota {quota} is still {found['Status']} after {_QUOTA_PATIENCE_S} s"
            )
        time.sleep(_POLL_S)


def _delete(client: Any, quota: str) -> None:
    if quota.startswith("failed-"):
        return
    try:
        client.delete_compute_quota(ComputeQuotaId=quota)
        _wait(client, quota, "Deleted")
    except ClientError as error:
        if error.response["Error"]["Code"] != "ResourceNotFound":
            raise
