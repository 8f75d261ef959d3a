"""Counts the GPU nodes on which no pod asks for a GPU, and reports the number to CloudWatch.

The event is {HyperPodCluster, EksCluster, GpuGroups}. An exception fails the invocation, which shows in the
function's own error metric.
"""

from typing import Any

import boto3

from .kube_client import KubeClient

_GPU = "nvidia.com/gpu"
_NAMESPACE = "Skypod"


def handler(event: dict[str, Any], context: Any) -> dict[str, int]:
    nodes = _running(event["HyperPodCluster"], event["GpuGroups"])
    used = _used_nodes(KubeClient(event["EksCluster"])) if nodes else 0
    idle = max(0, nodes - used)
    boto3.client("cloudwatch").put_metric_data(
        Namespace=_NAMESPACE,
        MetricData=[
            {
                "MetricName": "IdleGpuNodes",
                "Dimensions": [{"Name": "Cluster", "Value": event["HyperPodCluster"]}],
                "Value": idle,
                "Unit": "Count",
            }
        ],
    )
    return {"Running": nodes, "Idle": idle}


def _running(cluster: str, groups: list[str]) -> int:
    pages = boto3.client("sagemaker").get_paginator("list_cluster_nodes").paginate(ClusterName=cluster)
    return sum(
        node["InstanceGroupName"] in groups and node["InstanceStatus"]["Status"] == "Running"
        for page in pages
        for node in page["ClusterNodeSummaries"]
    )


def _used_nodes(client: KubeClient) -> int:
    """Nodes with a pod that asks for a GPU and has not ended."""
    used = set()
    for pod in client.items("v1", "Pod"):
        ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        node = pod["spec"].get("nodeName")
        if node and not ended and any(_gpus(container) for container in pod["spec"]["containers"]):
            used.add(node)
    return len(used)


def _gpus(container: dict[str, Any]) -> int:
    return int(container.get("resources", {}).get("limits", {}).get(_GPU, 0))
