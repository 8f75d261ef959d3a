"""Amazon Managed Grafana workspaces."""

from __future__ import annotations

import json
import time
from typing import Any

from ministack.core.responses import AccountRegionScopedDict, get_region

from rehearsal.aws import cloudformation, models
from rehearsal.aws.models import ApiError
from rehearsal.aws.service import Service, identifier, require_role

_RENAME = {
    "Name": "workspaceName",
    "Description": "workspaceDescription",
    "DataSources": "workspaceDataSources",
    "NotificationDestinations": "workspaceNotificationDestinations",
    "OrganizationalUnits": "workspaceOrganizationalUnits",
    "RoleArn": "workspaceRoleArn",
}
_STORED = {
    "workspaceName": "name",
    "workspaceDescription": "description",
    "workspaceDataSources": "dataSources",
    "workspaceNotificationDestinations": "notificationDestinations",
    "workspaceOrganizationalUnits": "organizationalUnits",
    "vpcConfiguration": "vpcConfiguration",
    "networkAccessControl": "networkAccessControl",
}


class Grafana(Service):
    """Workspace operations; a workspace is active at once and serves no pages."""

    model = signing = "grafana"

    def __init__(self) -> None:
        self.workspaces = AccountRegionScopedDict()

    def create_workspace(self, params: dict[str, Any]) -> dict[str, Any]:
        if "workspaceRoleArn" in params:
            require_role(params["workspaceRoleArn"])
        elif params["permissionType"] == "CUSTOMER_MANAGED":
            raise ApiError("ValidationException", "A customer managed workspace needs workspaceRoleArn")
        number = identifier("g-", 10)
        now = time.time()
        workspace = {
            **params,
            **{stored: params[key] for key, stored in _STORED.items() if key in params},
            "id": number,
            "endpoint": f"{number}.grafana-workspace.{get_region()}.amazonaws.com",
            "status": "ACTIVE",
            "created": now,
            "modified": now,
            "dataSources": params.get("workspaceDataSources", []),
            "grafanaVersion": params.get("grafanaVersion", "10.4"),
            "authentication": {"providers": params["authenticationProviders"]},
        }
        self.workspaces[number] = workspace
        return {"workspace": workspace}

    def describe_workspace(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"workspace": self._find(params["workspaceId"])}

    def list_workspaces(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"workspaces": list(self.workspaces.values())}

    def update_workspace(self, params: dict[str, Any]) -> dict[str, Any]:
        workspace = self._find(params["workspaceId"])
        if "workspaceRoleArn" in params:
            require_role(params["workspaceRoleArn"])
        workspace.update(
            {_STORED.get(key, key): value for key, value in params.items() if key != "workspaceId"}
        )
        workspace["modified"] = time.time()
        return {"workspace": workspace}

    def delete_workspace(self, params: dict[str, Any]) -> dict[str, Any]:
        workspace = self._find(params["workspaceId"])
        del self.workspaces[params["workspaceId"]]
        return {"workspace": {**workspace, "status": "DELETING"}}

    def list_tags_for_resource(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"tags": self._find(params["resourceArn"].rpartition("/")[2]).get("tags", {})}

    def _find(self, number: str) -> dict[str, Any]:
        if number not in self.workspaces:
            raise ApiError("ResourceNotFoundException", f"Workspace {number} does not exist", 404)
        return self.workspaces[number]


def _api(properties: dict[str, Any]) -> dict[str, Any]:
    # The template has a flag of its own for what the API carries in a JSON document.
    if "PluginAdminEnabled" not in properties:
        return properties
    rest = {key: value for key, value in properties.items() if key != "PluginAdminEnabled"}
    enabled = str(properties["PluginAdminEnabled"]).lower() == "true"
    return {**rest, "Configuration": json.dumps({"plugins": {"pluginAdminEnabled": enabled}})}


def register(grafana: Grafana) -> None:
    """AWS::Grafana::Workspace."""

    def attributes(number: str) -> dict[str, Any]:
        workspace = grafana._find(number)
        return {
            "Id": number,
            "Endpoint": workspace["endpoint"],
            "Status": workspace["status"],
            "GrafanaVersion": workspace["grafanaVersion"],
        }

    def create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        params = models.from_template("grafana", "CreateWorkspace", _api(properties), _RENAME)
        number = grafana.call("CreateWorkspace", params)["workspace"]["id"]
        return number, attributes(number)

    def update(
        number: str, old: dict[str, Any], new: dict[str, Any], stack: str
    ) -> tuple[str, dict[str, Any]]:
        allowed = {
            name.lower() for name in models.operation("grafana", "UpdateWorkspace").input_shape.members
        }
        changed = {
            key: value
            for key, value in _api(new).items()
            if old.get(key) != value and _RENAME.get(key, key).lower() in allowed
        }
        params = models.from_template("grafana", "UpdateWorkspace", changed, _RENAME)
        grafana.call("UpdateWorkspace", {**params, "workspaceId": number})
        return number, attributes(number)

    def delete(number: str, properties: dict[str, Any]) -> None:
        grafana.call("DeleteWorkspace", {"workspaceId": number})

    cloudformation.register("AWS::Grafana::Workspace", create, delete, update, replace_on=("ClientToken",))
