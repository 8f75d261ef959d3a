"""Amazon Managed Grafana: workspaces, and service accounts with tokens for the HTTP API inside them."""

from __future__ import annotations

import json
import os
import secrets
import time
from typing import Any
from urllib.parse import parse_qs

from ministack.core.responses import AccountRegionScopedDict

from rehearsal.aws import cloudformation, models
from rehearsal.aws.grafana_http import Site, Token
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


HTTP_PREFIX = "/grafana/"
"""Below it the server answers for the workspaces, whose own host names lead nowhere here."""


class Grafana(Service):
    """Workspace operations; a workspace is active at once, serves its HTTP API and no pages."""

    model = signing = "grafana"

    def __init__(self) -> None:
        self.workspaces = AccountRegionScopedDict()
        self.sites: dict[str, Site] = {}
        self.accounts: dict[str, dict[str, dict[str, Any]]] = {}
        """Service accounts by workspace and id."""

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
            "endpoint": f"{os.environ['AWS_ENDPOINT_URL']}{HTTP_PREFIX}{number}",
            "status": "ACTIVE",
            "created": now,
            "modified": now,
            "dataSources": params.get("workspaceDataSources", []),
            "grafanaVersion": params.get("grafanaVersion", "10.4"),
            "authentication": {"providers": params["authenticationProviders"]},
        }
        self.workspaces[number] = workspace
        self.sites[number], self.accounts[number] = Site(), {}
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
        for held in (self.workspaces, self.sites, self.accounts):
            del held[params["workspaceId"]]
        return {"workspace": {**workspace, "status": "DELETING"}}

    def create_workspace_service_account(self, params: dict[str, Any]) -> dict[str, Any]:
        accounts = self._accounts(params)
        if any(account["name"] == params["name"] for account in accounts.values()):
            raise ApiError("ConflictException", f"Service account {params['name']} exists already", 409)
        number = str(len(accounts) + 1 + secrets.randbelow(10**6))
        accounts[number] = {"id": number, **params, "isDisabled": "false"}
        return accounts[number]

    def list_workspace_service_accounts(self, params: dict[str, Any]) -> dict[str, Any]:
        found = list(self._accounts(params).values())
        return {"serviceAccounts": found, "workspaceId": params["workspaceId"]}

    def delete_workspace_service_account(self, params: dict[str, Any]) -> dict[str, Any]:
        account = self._account(params)
        del self._accounts(params)[account["id"]]
        tokens = self.sites[params["workspaceId"]].tokens
        for name in [name for name in tokens if name.startswith(f"{account['id']}/")]:
            del tokens[name]
        return params

    def create_workspace_service_account_token(self, params: dict[str, Any]) -> dict[str, Any]:
        account = self._account(params)
        number = secrets.token_hex(4)
        token = Token(
            key=f"glsa_{secrets.token_hex(16)}",
            role=account["grafanaRole"],
            expires_at=time.time() + params["secondsToLive"],
        )
        self.sites[params["workspaceId"]].tokens[f"{account['id']}/{number}"] = token
        return {**params, "serviceAccountToken": {"id": number, "name": params["name"], "key": token.key}}

    def http(
        self, method: str, path: str, query: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        """(status, body) of a request to a workspace's own HTTP API; `path` starts with HTTP_PREFIX."""
        number, _, rest = path.removeprefix(HTTP_PREFIX).partition("/")
        site = self.sites.get(number)
        if site is None:
            return 404, json.dumps({"message": f"no workspace {number}"}).encode()
        status, document = site.answer(method, f"/{rest}", parse_qs(query), headers, body)
        return status, json.dumps(document).encode()

    def _accounts(self, params: dict[str, Any]) -> dict[str, dict[str, Any]]:
        self._find(params["workspaceId"])
        return self.accounts[params["workspaceId"]]

    def _account(self, params: dict[str, Any]) -> dict[str, Any]:
        accounts = self._accounts(params)
        if params["serviceAccountId"] not in accounts:
            raise ApiError(
                "ResourceNotFoundException", f"Service account {params['serviceAccountId']} not found", 404
            )
        return accounts[params["serviceAccountId"]]

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
