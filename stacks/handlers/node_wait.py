"""Custom::NodesJoined: waits until every instance group has its nodes, and fails with the reason otherwise.

HyperPod calls a cluster InService, and CloudFormation calls it created, even when not one node could be had.
Properties: ClusterName, Groups (JSON: group name -> number of nodes), TimeoutSeconds.
"""

import json
import time
from collections import Counter
from typing import Any

import boto3

from .reply import Done, Postponed, answer

_POLL_S = 10
# A function runs for 15 minutes at most; before that the wait is handed to the next invocation.
_TURN_S = 780


def handler(event: dict[str, Any], context: Any) -> None:
    answer(event, context, _work)


def _work(event: dict[str, Any], context: Any) -> Done:
    if event["RequestType"] == "Delete":
        return Done(event["PhysicalResourceId"])
    properties = event["ResourceProperties"]
    cluster = properties["ClusterName"]
    wanted = {group: int(count) for group, count in json.loads(properties["Groups"]).items()}
    deadline = event.setdefault("WaitUntil", time.time() + int(properties["TimeoutSeconds"]))
    turn_ends = time.monotonic() + _TURN_S
    client = boto3.client("sagemaker")
    while True:
        status = client.describe_cluster(ClusterName=cluster)
        if status["ClusterStatus"] in ("Failed", "RollingBack", "Deleting"):
            raise RuntimeError(
                f"HyperPod cluster {cluster} is {status['ClusterStatus']}: {status.get('FailureMessage', '')}"
            )
        nodes = _nodes(client, cluster)
        missing = _missing(wanted, nodes)
        if not missing:
            return Done(f"{cluster}/nodes", {"Nodes": str(sum(wanted.values()))})
        if time.time() > deadline:
            raise TimeoutError(
                f"after {properties['TimeoutSeconds']} s nodes have not joined {cluster}: "
                f"{'; '.join(missing)}. Check the quota 'for cluster usage' of the type, its offering in the "
                f"zone, and the node logs under /aws/sagemaker/Clusters/{cluster}"
            )
        if time.monotonic() > turn_ends:
            boto3.client("lambda").invoke(
                FunctionName=context.invoked_function_arn, InvocationType="Event", Payload=json.dumps(event)
            )
            raise Postponed
        time.sleep(_POLL_S)


def _nodes(client: Any, cluster: str) -> list[dict[str, Any]]:
    pages = client.get_paginator("list_cluster_nodes").paginate(ClusterName=cluster)
    return [node for page in pages for node in page["ClusterNodeSummaries"]]


def _missing(wanted: dict[str, int], nodes: list[dict[str, Any]]) -> list[str]:
    """One sentence per group that lacks nodes, with what the nodes say about themselves."""
    running = Counter(
        node["InstanceGroupName"] for node in nodes if node["InstanceStatus"]["Status"] == "Running"
    )
    sentences = []
    for group, count in wanted.items():
        if running[group] >= count:
            continue
        others = {
            f"{node['InstanceStatus']['Status']} {node['InstanceStatus'].get('Message', '')}".strip()
            for node in nodes
            if node["InstanceGroupName"] == group and node["InstanceStatus"]["Status"] != "Running"
        }
        said = f" ({', '.join(sorted(others))})" if others else ""
        sentences.append(f"group {group}: {running[group]} of {count} running{said}")
    return sentences
