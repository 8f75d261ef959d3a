"""SageMaker Studio domains and user profiles; no application is ever started in them."""

from __future__ import annotations

import time
from typing import Any, Protocol

from ministack.core.responses import AccountRegionScopedDict

from rehearsal.aws import cloudformation, models
from rehearsal.aws.models import ApiError
from rehearsal.aws.service import arn, identifier, require_role, require_subnets

_SHOWN = ("DomainId", "DomainArn", "DomainName", "Status", "CreationTime", "Url")


class Studio:
    """Domain operations; a domain is in service at once."""

    def __init__(self) -> None:
        self.domains = AccountRegionScopedDict()
        self.profiles = AccountRegionScopedDict()

    def create_domain(self, params: dict[str, Any]) -> dict[str, Any]:
        if any(domain["DomainName"] == params["DomainName"] for domain in self.domains.values()):
            raise ApiError("ResourceInUse", f"Domain {params['DomainName']} already exists")
        require_role(params["DefaultUserSettings"]["ExecutionRole"])
        require_subnets(params.get("SubnetIds", []))
        number = identifier("d-", 12)
        domain = {
            **params,
            "DomainId": number,
            "DomainArn": arn("sagemaker", f"domain/{number}"),
            "Status": "InService",
            "CreationTime": time.time(),
            "Url": f"https://{number}.studio.example.com",
        }
        if params.get("HomeEfsFileSystemCreation", "Enabled") == "Enabled":
            domain["HomeEfsFileSystemId"] = identifier("fs-")
        self.domains[number] = domain
        return {key: domain[key] for key in ("DomainArn", "DomainId", "Url")}

    def describe_domain(self, params: dict[str, Any]) -> dict[str, Any]:
        return self._domain(params["DomainId"])

    def update_domain(self, params: dict[str, Any]) -> dict[str, Any]:
        domain = self._domain(params["DomainId"])
        domain.update({key: value for key, value in params.items() if key != "DomainId"})
        return domain

    def delete_domain(self, params: dict[str, Any]) -> dict[str, Any]:
        domain = self._domain(params["DomainId"])
        if any(profile["DomainId"] == domain["DomainId"] for profile in self.profiles.values()):
            raise ApiError("ResourceInUse", f"Domain {domain['DomainId']} still has user profiles")
        del self.domains[domain["DomainId"]]
        return {}

    def list_domains(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"Domains": [{key: d[key] for key in _SHOWN} for d in self.domains.values()]}

    def create_user_profile(self, params: dict[str, Any]) -> dict[str, Any]:
        domain, name = self._domain(params["DomainId"])["DomainId"], params["UserProfileName"]
        if f"{domain}/{name}" in self.profiles:
            raise ApiError("ResourceInUse", f"User profile {name} already exists")
        made = arn("sagemaker", f"user-profile/{domain}/{name}")
        now = time.time()
        profile = {**params, "UserProfileArn": made, "Status": "InService", "CreationTime": now}
        self.profiles[f"{domain}/{name}"] = profile
        return {"UserProfileArn": made}

    def describe_user_profile(self, params: dict[str, Any]) -> dict[str, Any]:
        return self._profile(params)

    def delete_user_profile(self, params: dict[str, Any]) -> dict[str, Any]:
        self._profile(params)
        del self.profiles[f"{params['DomainId']}/{params['UserProfileName']}"]
        return {}

    def list_user_profiles(self, params: dict[str, Any]) -> dict[str, Any]:
        wanted = params.get("DomainIdEquals")
        return {"UserProfiles": [p for p in self.profiles.values() if wanted in (None, p["DomainId"])]}

    def _domain(self, number: str) -> dict[str, Any]:
        if number not in self.domains:
            raise ApiError("ResourceNotFound", f"Domain {number} not found")
        return self.domains[number]

    def _profile(self, params: dict[str, Any]) -> dict[str, Any]:
        key = f"{params['DomainId']}/{params['UserProfileName']}"
        if key not in self.profiles:
            raise ApiError("ResourceNotFound", f"User profile {key} not found")
        return self.profiles[key]


class _SageMaker(Protocol):
    """What the resource types need of the service."""

    def call(self, name: str, params: dict[str, Any]) -> dict[str, Any]: ...


def register(sagemaker: _SageMaker) -> None:
    """AWS::SageMaker::Domain and AWS::SageMaker::UserProfile."""

    def create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        params = models.from_template("sagemaker", "CreateDomain", properties)
        made = sagemaker.call("CreateDomain", params)
        return made["DomainId"], made

    def update(
        number: str, old: dict[str, Any], new: dict[str, Any], stack: str
    ) -> tuple[str, dict[str, Any]]:
        allowed = models.operation("sagemaker", "UpdateDomain").input_shape.members
        changed = {key: value for key, value in new.items() if key in allowed and old.get(key) != value}
        params = models.from_template("sagemaker", "UpdateDomain", changed)
        sagemaker.call("UpdateDomain", {**params, "DomainId": number})
        made = sagemaker.call("DescribeDomain", {"DomainId": number})
        return number, {key: made[key] for key in ("DomainArn", "DomainId", "Url")}

    def delete(number: str, properties: dict[str, Any]) -> None:
        sagemaker.call("DeleteDomain", {"DomainId": number})

    replaced = ("DomainName", "AuthMode", "HomeEfsFileSystemCreation")
    cloudformation.register("AWS::SageMaker::Domain", create, delete, update, replace_on=replaced)

    def profile_create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        params = models.from_template("sagemaker", "CreateUserProfile", properties)
        made = sagemaker.call("CreateUserProfile", params)
        return f"{params['UserProfileName']}|{params['DomainId']}", made

    def profile_delete(physical_id: str, properties: dict[str, Any]) -> None:
        name, _, domain = physical_id.partition("|")
        sagemaker.call("DeleteUserProfile", {"DomainId": domain, "UserProfileName": name})

    cloudformation.register(
        "AWS::SageMaker::UserProfile",
        profile_create,
        profile_delete,
        replace_on=("DomainId", "UserProfileName"),
    )
