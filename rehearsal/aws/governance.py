"""Task governance of SageMaker HyperPod: scheduler configurations and compute quotas."""

from __future__ import annotations

import time
from typing import Any, Protocol

from ministack.core.responses import AccountRegionScopedDict

from rehearsal.aws import cloudformation, models
from rehearsal.aws.models import ApiError
from rehearsal.aws.service import arn, identifier

SETTLE_S = 0.2
"""Seconds that a quota stays in Creating, Updating or Deleting."""


class Governance:
    """Operations of task governance, for a service that finds clusters by `_find`."""

    def __init__(self) -> None:
        self.schedulers = AccountRegionScopedDict()
        self.quotas = AccountRegionScopedDict()

    def require_ungoverned(self, cluster: dict[str, Any]) -> None:
        """Refuse to delete a cluster that has quotas or a scheduler configuration, as HyperPod does."""
        for kind, held in (("compute quota", self.quotas), ("scheduler configuration", self.schedulers)):
            if any(one["ClusterArn"] == cluster["ClusterArn"] for one in list(held.values())):
                raise ApiError("ConflictException", f"Cluster {cluster['ClusterName']} still has a {kind}")

    def create_cluster_scheduler_config(self, params: dict[str, Any]) -> dict[str, Any]:
        self._find(params["ClusterArn"])
        if any(s["ClusterArn"] == params["ClusterArn"] for s in self.schedulers.values()):
            raise ApiError(
                "ConflictException", f"{params['ClusterArn']} has a scheduler configuration already"
            )
        number = identifier("", 12)
        key = {
            "ClusterSchedulerConfigArn": arn("sagemaker", f"cluster-scheduler-config/{number}"),
            "ClusterSchedulerConfigId": number,
        }
        self.schedulers[number] = {
            **params,
            **key,
            "ClusterSchedulerConfigVersion": 1,
            "Status": "Created",
            "CreationTime": time.time(),
        }
        return key

    def describe_cluster_scheduler_config(self, params: dict[str, Any]) -> dict[str, Any]:
        return self._scheduler(params["ClusterSchedulerConfigId"])

    def update_cluster_scheduler_config(self, params: dict[str, Any]) -> dict[str, Any]:
        scheduler = self._scheduler(params["ClusterSchedulerConfigId"])
        if params["TargetVersion"] != scheduler["ClusterSchedulerConfigVersion"]:
            raise ApiError("ConflictException", f"Version is {scheduler['ClusterSchedulerConfigVersion']}")
        scheduler.update({k: v for k, v in params.items() if k in ("SchedulerConfig", "Description")})
        scheduler["ClusterSchedulerConfigVersion"] += 1
        return scheduler

    def delete_cluster_scheduler_config(self, params: dict[str, Any]) -> dict[str, Any]:
        self._scheduler(params["ClusterSchedulerConfigId"])
        del self.schedulers[params["ClusterSchedulerConfigId"]]
        return {}

    def list_cluster_scheduler_configs(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"ClusterSchedulerConfigSummaries": list(self.schedulers.values())}

    def _scheduler(self, number: str) -> dict[str, Any]:
        if number not in self.schedulers:
            raise ApiError("ResourceNotFound", f"Cluster scheduler configuration {number} not found")
        return self.schedulers[number]

    def create_compute_quota(self, params: dict[str, Any]) -> dict[str, Any]:
        cluster = self._find(params["ClusterArn"])
        team = params["ComputeQuotaTarget"]["TeamName"]
        for other in self.quotas.values():
            if other["ClusterArn"] != params["ClusterArn"]:
                continue
            if params["Name"] == other["Name"] or team == other["ComputeQuotaTarget"]["TeamName"]:
                raise ApiError("ConflictException", f"A quota {params['Name']} or one of team {team} exists")
        _require_types(params, cluster)
        number = identifier("", 12)
        key = {
            "ComputeQuotaArn": arn("sagemaker", f"compute-quota/{number}"),
            "ComputeQuotaId": number,
        }
        self.quotas[number] = {
            **params,
            **key,
            "ComputeQuotaVersion": 1,
            "Status": "Creating",
            "CreationTime": time.time(),
            "_settles_at": time.time() + SETTLE_S,
        }
        return key

    def describe_compute_quota(self, params: dict[str, Any]) -> dict[str, Any]:
        return self._quota(params["ComputeQuotaId"])

    def update_compute_quota(self, params: dict[str, Any]) -> dict[str, Any]:
        quota = self._quota(params["ComputeQuotaId"])
        if params["TargetVersion"] != quota["ComputeQuotaVersion"]:
            raise ApiError("ConflictException", f"Version is {quota['ComputeQuotaVersion']}")
        _require_types(params, self._find(quota["ClusterArn"]))
        kept = ("ComputeQuotaConfig", "ComputeQuotaTarget", "ActivationState", "Description")
        quota.update({key: value for key, value in params.items() if key in kept})
        quota.update(Status="Updating", _settles_at=time.time() + SETTLE_S)
        quota["ComputeQuotaVersion"] += 1
        return quota

    def delete_compute_quota(self, params: dict[str, Any]) -> dict[str, Any]:
        self._quota(params["ComputeQuotaId"]).update(Status="Deleting", _settles_at=time.time() + SETTLE_S)
        return {}

    def list_compute_quotas(self, params: dict[str, Any]) -> dict[str, Any]:
        found = [quota for number in list(self.quotas) if (quota := self._settled(number)) is not None]
        wanted = params.get("ClusterArn")
        return {"ComputeQuotaSummaries": [q for q in found if wanted in (None, q["ClusterArn"])]}

    def _quota(self, number: str) -> dict[str, Any]:
        quota = self._settled(number)
        if quota is None:
            raise ApiError("ResourceNotFound", f"Compute quota {number} not found")
        return quota

    def _settled(self, number: str) -> dict[str, Any] | None:
        quota = self.quotas.get(number)
        if quota is None or time.time() < quota["_settles_at"]:
            return quota
        if quota["Status"] == "Deleting":
            del self.quotas[number]
            return None
        quota["Status"] = {"Creating": "Created", "Updating": "Updated"}.get(quota["Status"], quota["Status"])
        return quota


def _require_types(params: dict[str, Any], cluster: dict[str, Any]) -> None:
    there = {group.get("InstanceType") for group in cluster["InstanceGroups"]}
    for resource in params.get("ComputeQuotaConfig", {}).get("ComputeQuotaResources", []):
        if resource["InstanceType"] not in there:
            raise ApiError("ValidationException", f"The cluster has no {resource['InstanceType']}")


class _HyperPod(Protocol):
    """What the resource type needs of the service."""

    def call(self, name: str, params: dict[str, Any]) -> dict[str, Any]: ...

    def _scheduler(self, number: str) -> dict[str, Any]: ...


def register(hyperpod: _HyperPod) -> None:
    """AWS::SageMaker::ClusterSchedulerConfig; CloudFormation has no type for compute quotas."""

    def scheduler_create(
        logical_id: str, properties: dict[str, Any], stack: str
    ) -> tuple[str, dict[str, Any]]:
        params = models.from_template("sagemaker", "CreateClusterSchedulerConfig", properties)
        key = hyperpod.call("CreateClusterSchedulerConfig", params)
        return key["ClusterSchedulerConfigArn"], key

    def scheduler_update(
        scheduler_arn: str, old: dict[str, Any], new: dict[str, Any], stack: str
    ) -> tuple[str, dict[str, Any]]:
        current = hyperpod._scheduler(scheduler_arn.rpartition("/")[2])
        changed = {key: new[key] for key in ("SchedulerConfig", "Description") if key in new}
        params = models.from_template("sagemaker", "UpdateClusterSchedulerConfig", changed)
        params["ClusterSchedulerConfigId"] = current["ClusterSchedulerConfigId"]
        params["TargetVersion"] = current["ClusterSchedulerConfigVersion"]
        hyperpod.call("UpdateClusterSchedulerConfig", params)
        return scheduler_arn, {
            k: current[k] for k in ("ClusterSchedulerConfigArn", "ClusterSchedulerConfigId")
        }

    def scheduler_delete(scheduler_arn: str, properties: dict[str, Any]) -> None:
        number = scheduler_arn.rpartition("/")[2]
        hyperpod.call("DeleteClusterSchedulerConfig", {"ClusterSchedulerConfigId": number})

    cloudformation.register(
        "AWS::SageMaker::ClusterSchedulerConfig",
        scheduler_create,
        scheduler_delete,
        scheduler_update,
        replace_on=("Name", "ClusterArn"),
    )
