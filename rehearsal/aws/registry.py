"""SageMaker's Model Registry: groups of versioned model packages, their approval and their metadata."""

from __future__ import annotations

import time
from typing import Any

from ministack.core.responses import AccountRegionScopedDict

from rehearsal.aws.models import ApiError
from rehearsal.aws.service import arn

_KEPT = (
    "ModelPackageDescription",
    "InferenceSpecification",
    "ModelApprovalStatus",
    "ApprovalDescription",
    "CustomerMetadataProperties",
)


class ModelRegistry:
    """Package operations; a package is complete at once."""

    def __init__(self) -> None:
        self.groups = AccountRegionScopedDict()
        self.packages = AccountRegionScopedDict()

    def create_model_package_group(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params["ModelPackageGroupName"]
        group_arn = arn("sagemaker", f"model-package-group/{name}")
        if name in self.groups:
            raise ApiError("ValidationException", f"Model Package Group already exists: {group_arn}")
        self.groups[name] = {**params, "ModelPackageGroupArn": group_arn, "CreationTime": time.time()}
        return {"ModelPackageGroupArn": group_arn}

    def list_model_package_groups(self, params: dict[str, Any]) -> dict[str, Any]:
        return {
            "ModelPackageGroupSummaryList": [
                {**group, "ModelPackageGroupStatus": "Completed"} for group in self.groups.values()
            ]
        }

    def delete_model_package_group(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params["ModelPackageGroupName"]
        self._require_group(name)
        if any(one["ModelPackageGroupName"] == name for one in self.packages.values()):
            raise ApiError("ConflictException", f"Model package group {name} has model packages")
        del self.groups[name]
        return {}

    def delete_model_package(self, params: dict[str, Any]) -> dict[str, Any]:
        del self.packages[self._package(params["ModelPackageName"])["ModelPackageArn"]]
        return {}

    def create_model_package(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params["ModelPackageGroupName"]
        self._require_group(name)
        token = params.get("ClientToken")
        versions = [one for one in self.packages.values() if one["ModelPackageGroupName"] == name]
        for one in versions:
            if token and one["_token"] == token:
                return {"ModelPackageArn": one["ModelPackageArn"]}
        number = len(versions) + 1
        package_arn = arn("sagemaker", f"model-package/{name}/{number}")
        self.packages[package_arn] = {
            "ModelApprovalStatus": "PendingManualApproval",
            **{key: params[key] for key in _KEPT if key in params},
            "ModelPackageGroupName": name,
            "ModelPackageVersion": number,
            "ModelPackageArn": package_arn,
            "ModelPackageStatus": "Completed",
            "ModelPackageStatusDetails": {"ValidationStatuses": []},
            "CreationTime": time.time(),
            "_token": token,
        }
        return {"ModelPackageArn": package_arn}

    def describe_model_package(self, params: dict[str, Any]) -> dict[str, Any]:
        return self._package(params["ModelPackageName"])

    def update_model_package(self, params: dict[str, Any]) -> dict[str, Any]:
        package = self._package(params["ModelPackageArn"])
        metadata = {
            **package.get("CustomerMetadataProperties", {}),
            **params.get("CustomerMetadataProperties", {}),
        }
        for key in params.get("CustomerMetadataPropertiesToRemove", []):
            metadata.pop(key, None)
        package.update({key: params[key] for key in _KEPT if key in params})
        package["CustomerMetadataProperties"] = metadata
        return {"ModelPackageArn": package["ModelPackageArn"]}

    def list_model_packages(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params.get("ModelPackageGroupName")
        if name:
            self._require_group(name)
        found = [one for one in self.packages.values() if name in (None, one["ModelPackageGroupName"])]
        found.sort(key=lambda one: one["CreationTime"], reverse=params.get("SortOrder") == "Descending")
        return {"ModelPackageSummaryList": found}

    def _package(self, package_arn: str) -> dict[str, Any]:
        if package_arn not in self.packages:
            raise ApiError("ValidationException", f"ModelPackage {package_arn} does not exist.")
        return self.packages[package_arn]

    def _require_group(self, name: str) -> None:
        if name not in self.groups:
            group_arn = arn("sagemaker", f"model-package-group/{name}")
            raise ApiError("ValidationException", f"ModelPackageGroup {group_arn} does not exist.")
