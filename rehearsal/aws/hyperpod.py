"""SageMaker HyperPod clusters and their nodes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

from ministack.core.responses import AccountRegionScopedDict
from ministack.services import eks, s3

from rehearsal.aws import cloudformation, governance, inference, models, studio
from rehearsal.aws.governance import Governance
from rehearsal.aws.inference import Inference
from rehearsal.aws.models import ApiError
from rehearsal.aws.registry import ModelRegistry
from rehearsal.aws.service import (
    Service,
    arn,
    identifier,
    require_role,
    require_security_groups,
    require_subnets,
    wait_until,
)
from rehearsal.aws.studio import Studio

SETTLE_S = 0.2
"""Seconds that a cluster stays in Creating, Updating or Deleting."""

_GROUP_LIFECYCLE = "Instance group {group}: lifecycle script s3://{bucket}/{key} does not exist"


class HyperPod(Governance, Studio, ModelRegistry, Inference, Service):
    """SageMaker: cluster operations here. Clusters settle by the clock; nodes are listed, not started."""

    model = signing = "sagemaker"

    def __init__(self) -> None:
        Governance.__init__(self)
        Studio.__init__(self)
        ModelRegistry.__init__(self)
        Inference.__init__(self)
        self.clusters = AccountRegionScopedDict()

    def create_cluster(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params["ClusterName"]
        if self._lookup(name) is not None:
            raise ApiError("ResourceInUse", f"Cluster {name} already exists")
        _check_orchestrator(params)
        _check_placement(params.get("VpcConfig"))
        for group in params.get("InstanceGroups", []):
            _check_group(group)
        cluster_arn = arn("sagemaker", f"cluster/{identifier('', 12)}")
        self.clusters[name] = {
            **params,
            "ClusterArn": cluster_arn,
            "CreationTime": time.time(),
            "ClusterStatus": "Creating",
            "InstanceGroups": [_started(group, "Creating") for group in params.get("InstanceGroups", [])],
            "_settles_at": time.time() + SETTLE_S,
        }
        return {"ClusterArn": cluster_arn}

    def describe_cluster(self, params: dict[str, Any]) -> dict[str, Any]:
        return self._find(params["ClusterName"])

    def update_cluster(self, params: dict[str, Any]) -> dict[str, Any]:
        cluster = self._find(params["ClusterName"])
        if cluster["ClusterStatus"] != "InService":
            raise ApiError(
                "ConflictException", f"Cluster {cluster['ClusterName']} is {cluster['ClusterStatus']}"
            )
        groups = {group["InstanceGroupName"]: group for group in cluster["InstanceGroups"]}
        for name in params.get("InstanceGroupsToDelete", []):
            if groups.pop(name, None) is None:
                raise ApiError("ValidationException", f"Instance group {name} does not exist")
        for group in params.get("InstanceGroups", []):
            _check_group(group)
            current = groups.get(group["InstanceGroupName"], {}).get("CurrentCount", 0)
            groups[group["InstanceGroupName"]] = {**_started(group, "Updating"), "CurrentCount": current}
        kept = ("ClusterName", "InstanceGroups", "InstanceGroupsToDelete")
        cluster.update({key: value for key, value in params.items() if key not in kept})
        cluster.update(
            InstanceGroups=list(groups.values()), ClusterStatus="Updating", _settles_at=time.time() + SETTLE_S
        )
        return {"ClusterArn": cluster["ClusterArn"]}

    def delete_cluster(self, params: dict[str, Any]) -> dict[str, Any]:
        cluster = self._find(params["ClusterName"])
        self.require_ungoverned(cluster)
        cluster.update(ClusterStatus="Deleting", _settles_at=time.time() + SETTLE_S)
        return {"ClusterArn": cluster["ClusterArn"]}

    def list_clusters(self, params: dict[str, Any]) -> dict[str, Any]:
        found = [self._lookup(name) for name in list(self.clusters)]
        wanted = params.get("NameContains", "")
        return {"ClusterSummaries": [c for c in found if c is not None and wanted in c["ClusterName"]]}

    def list_cluster_nodes(self, params: dict[str, Any]) -> dict[str, Any]:
        cluster = self._find(params["ClusterName"])
        wanted = params.get("InstanceGroupNameContains", "")
        return {
            "ClusterNodeSummaries": [
                node
                for group in cluster["InstanceGroups"]
                if wanted in group["InstanceGroupName"]
                for node in _nodes(cluster, group)
            ]
        }

    def describe_cluster_node(self, params: dict[str, Any]) -> dict[str, Any]:
        for node in self.list_cluster_nodes({"ClusterName": params["ClusterName"]})["ClusterNodeSummaries"]:
            if node["InstanceId"] == params.get("NodeId"):
                return {"NodeDetails": node}
        raise ApiError("ResourceNotFound", f"Node {params.get('NodeId')} not found")

    def batch_reboot_cluster_nodes(self, params: dict[str, Any]) -> dict[str, Any]:
        return self._for_each_node(params, lambda cluster, node_id: None)

    def batch_replace_cluster_nodes(self, params: dict[str, Any]) -> dict[str, Any]:
        def replace(cluster: dict[str, Any], node_id: str) -> None:
            """The node's successor has another id; the old one is known no more."""
            cluster["_replaced"] = [*cluster.get("_replaced", []), node_id]

        return self._for_each_node(params, replace)

    def _for_each_node(
        self, params: dict[str, Any], act: Callable[[dict[str, Any], str], None]
    ) -> dict[str, Any]:
        cluster = self._find(params["ClusterName"])
        nodes = self.list_cluster_nodes({"ClusterName": cluster["ClusterName"]})["ClusterNodeSummaries"]
        statuses = {node["InstanceId"]: node["InstanceStatus"]["Status"] for node in nodes}
        successful, failed = [], []
        for node_id in params.get("NodeIds", []):
            status = statuses.get(node_id)
            if status == "Running":
                act(cluster, node_id)
                successful.append(node_id)
                continue
            code = "InvalidInstanceStatus" if status else "InstanceIdNotFound"
            message = f"Node {node_id} is {status or 'no node of this cluster'}"
            failed.append({"NodeId": node_id, "ErrorCode": code, "Message": message})
        return {"Successful": successful, "Failed": failed}

    def list_tags(self, params: dict[str, Any]) -> dict[str, Any]:
        wanted = params["ResourceArn"]
        for held in (
            *(self.clusters, self.schedulers, self.quotas, self.domains, self.profiles),
            *(self.models, self.endpoint_configs, self.endpoints, self.components),
        ):
            for owned in held.values():
                if wanted in (value for key, value in owned.items() if key.endswith("Arn")):
                    return {"Tags": owned.get("Tags", [])}
        raise ApiError("ResourceNotFound", f"{wanted} not found")

    def _find(self, name_or_arn: str) -> dict[str, Any]:
        by_arn = {cluster["ClusterArn"]: name for name, cluster in self.clusters.items()}
        cluster = self._lookup(by_arn.get(name_or_arn, name_or_arn))
        if cluster is None:
            raise ApiError("ResourceNotFound", f"Cluster with name {name_or_arn} not found.")
        return cluster

    def _lookup(self, name: str) -> dict[str, Any] | None:
        cluster = self.clusters.get(name)
        if cluster is None or time.time() < cluster["_settles_at"]:
            return cluster
        if cluster["ClusterStatus"] == "Deleting":
            del self.clusters[name]
            return None
        cluster["ClusterStatus"] = "InService"
        for group in cluster["InstanceGroups"]:
            group.update(CurrentCount=group["TargetCount"], Status="InService")
        return cluster


def _check_orchestrator(params: dict[str, Any]) -> None:
    orchestrator = params.get("Orchestrator", {}).get("Eks")
    if orchestrator is None:
        return
    cluster = eks._clusters.get(orchestrator["ClusterArn"].rpartition("/")[2])
    if cluster is None or cluster["arn"] != orchestrator["ClusterArn"]:
        raise ApiError("ValidationException", f"EKS cluster {orchestrator['ClusterArn']} does not exist")
    mode = (cluster.get("accessConfig") or {}).get("authenticationMode", "CONFIG_MAP")
    if mode not in ("API", "API_AND_CONFIG_MAP"):
        raise ApiError(
            "ValidationException", f"EKS authentication mode must be API or API_AND_CONFIG_MAP, not {mode}"
        )
    if not params.get("VpcConfig"):
        raise ApiError("ValidationException", "VpcConfig is required for a cluster that EKS orchestrates")


def _check_placement(vpc: dict[str, Any] | None) -> None:
    if vpc:
        require_subnets(vpc["Subnets"])
        require_security_groups(vpc["SecurityGroupIds"])


def _check_group(group: dict[str, Any]) -> None:
    _check_placement(group.get("OverrideVpcConfig"))
    require_role(group["ExecutionRole"])
    lifecycle = group.get("LifeCycleConfig")
    if lifecycle:
        bucket, _, prefix = lifecycle["SourceS3Uri"].removeprefix("s3://").partition("/")
        key = f"{prefix.rstrip('/')}/{lifecycle['OnCreate']}".lstrip("/")
        if key not in s3._buckets.get(bucket, {}).get("objects", {}):
            missing = _GROUP_LIFECYCLE.format(group=group["InstanceGroupName"], bucket=bucket, key=key)
            raise ApiError("ValidationException", missing)


def _started(group: dict[str, Any], status: str) -> dict[str, Any]:
    described = {key: value for key, value in group.items() if key != "InstanceCount"}
    return {**described, "CurrentCount": 0, "TargetCount": group["InstanceCount"], "Status": status}


def _nodes(cluster: dict[str, Any], group: dict[str, Any]) -> list[dict[str, Any]]:
    nodes = []
    for index in range(group["TargetCount"]):
        node_id = _node_id(f"{cluster['ClusterArn']}/{group['InstanceGroupName']}/{index}")
        while node_id in cluster.get("_replaced", []):
            node_id = _node_id(node_id)
        running = index < group["CurrentCount"]
        nodes.append(
            {
                "InstanceGroupName": group["InstanceGroupName"],
                "InstanceId": node_id,
                "InstanceType": group.get("InstanceType"),
                "LaunchTime": cluster["CreationTime"],
                "InstanceStatus": {"Status": "Running" if running else "Pending"},
            }
        )
    return nodes


def _node_id(seed: str) -> str:
    return "i-" + hashlib.sha256(seed.encode()).hexdigest()[:17]


def register(hyperpod: HyperPod) -> None:
    """AWS::SageMaker::Cluster, and the types of task governance, Studio and endpoints."""
    governance.register(hyperpod)
    inference.register(hyperpod)
    studio.register(hyperpod)

    def attributes(cluster_arn: str) -> dict[str, Any]:
        cluster = hyperpod._find(cluster_arn)
        return {
            "ClusterArn": cluster_arn,
            "ClusterStatus": cluster["ClusterStatus"],
            "CreationTime": str(cluster["CreationTime"]),
        }

    def settle(cluster_arn: str) -> None:
        wait_until(lambda: hyperpod._find(cluster_arn)["ClusterStatus"] == "InService", 60, cluster_arn)

    def create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        params = models.from_template("sagemaker", "CreateCluster", properties)
        params.setdefault("ClusterName", cloudformation.physical_name(stack, logical_id, 63))
        cluster_arn = hyperpod.call("CreateCluster", params)["ClusterArn"]
        settle(cluster_arn)
        return cluster_arn, attributes(cluster_arn)

    def update(
        cluster_arn: str, old: dict[str, Any], new: dict[str, Any], stack: str
    ) -> tuple[str, dict[str, Any]]:
        allowed = models.operation("sagemaker", "UpdateCluster").input_shape.members
        changed = {key: value for key, value in new.items() if key in allowed and old.get(key) != value}
        params = models.from_template("sagemaker", "UpdateCluster", changed)
        kept = {group["InstanceGroupName"] for group in new.get("InstanceGroups", [])}
        removed = [
            g["InstanceGroupName"]
            for g in old.get("InstanceGroups", [])
            if g["InstanceGroupName"] not in kept
        ]
        if removed:
            params["InstanceGroupsToDelete"] = removed
        if params:
            hyperpod.call("UpdateCluster", {**params, "ClusterName": cluster_arn})
            settle(cluster_arn)
        return cluster_arn, attributes(cluster_arn)

    def delete(cluster_arn: str, properties: dict[str, Any]) -> None:
        name = hyperpod._find(cluster_arn)["ClusterName"]
        hyperpod.call("DeleteCluster", {"ClusterName": cluster_arn})
        wait_until(lambda: hyperpod._lookup(name) is None, 60, cluster_arn)

    cloudformation.register(
        "AWS::SageMaker::Cluster",
        create,
        delete,
        update,
        replace_on=("ClusterName", "Orchestrator", "VpcConfig"),
    )
