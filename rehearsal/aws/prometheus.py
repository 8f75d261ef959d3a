"""Amazon Managed Service for Prometheus: workspaces, rule groups, alert manager definitions."""

from __future__ import annotations

import time
import uuid
from typing import Any

import yaml
from ministack.core.responses import AccountRegionScopedDict, get_region

from rehearsal.aws import cloudformation, models
from rehearsal.aws.models import ApiError
from rehearsal.aws.service import Service, arn


class Prometheus(Service):
    """Workspace operations; a workspace is active at once and stores no samples."""

    model = "amp"
    signing = "aps"

    def __init__(self) -> None:
        self.workspaces = AccountRegionScopedDict()
        self.rules = AccountRegionScopedDict()
        self.alert_managers = AccountRegionScopedDict()

    def create_workspace(self, params: dict[str, Any]) -> dict[str, Any]:
        number = f"ws-{uuid.uuid4()}"
        workspace = {
            "workspaceId": number,
            "arn": arn("aps", f"workspace/{number}"),
            "alias": params.get("alias", ""),
            "status": {"statusCode": "ACTIVE"},
            "prometheusEndpoint": f"https://aps-workspaces.{get_region()}.amazonaws.com/workspaces/{number}/",
            "createdAt": time.time(),
            "kmsKeyArn": params.get("kmsKeyArn"),
            "tags": params.get("tags", {}),
        }
        self.workspaces[number] = workspace
        return workspace

    def describe_workspace(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"workspace": self._find(params["workspaceId"])}

    def list_workspaces(self, params: dict[str, Any]) -> dict[str, Any]:
        prefix = params.get("alias", "")
        return {"workspaces": [w for w in self.workspaces.values() if w["alias"].startswith(prefix)]}

    def update_workspace_alias(self, params: dict[str, Any]) -> dict[str, Any]:
        self._find(params["workspaceId"])["alias"] = params.get("alias", "")
        return {}

    def delete_workspace(self, params: dict[str, Any]) -> dict[str, Any]:
        number = params["workspaceId"]
        self._find(number)
        del self.workspaces[number]
        self.alert_managers.pop(number, None)
        for key in [key for key in self.rules if key[0] == number]:
            del self.rules[key]
        return {}

    def create_rule_groups_namespace(self, params: dict[str, Any]) -> dict[str, Any]:
        self._find(params["workspaceId"])
        key = (params["workspaceId"], params["name"])
        if key in self.rules:
            raise ApiError("ConflictException", f"Rule groups namespace {params['name']} exists already", 409)
        _check_rules(params["data"])
        now = time.time()
        namespace = {
            "name": params["name"],
            "arn": arn("aps", f"rulegroupsnamespace/{params['workspaceId']}/{params['name']}"),
            "status": {"statusCode": "ACTIVE"},
            "data": params["data"],
            "createdAt": now,
            "modifiedAt": now,
            "tags": params.get("tags", {}),
        }
        self.rules[key] = namespace
        return namespace

    def put_rule_groups_namespace(self, params: dict[str, Any]) -> dict[str, Any]:
        namespace = self._rules(params["workspaceId"], params["name"])
        _check_rules(params["data"])
        namespace.update(data=params["data"], modifiedAt=time.time())
        return namespace

    def describe_rule_groups_namespace(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"ruleGroupsNamespace": self._rules(params["workspaceId"], params["name"])}

    def list_rule_groups_namespaces(self, params: dict[str, Any]) -> dict[str, Any]:
        self._find(params["workspaceId"])
        owned = [rules for key, rules in self.rules.items() if key[0] == params["workspaceId"]]
        return {"ruleGroupsNamespaces": owned}

    def delete_rule_groups_namespace(self, params: dict[str, Any]) -> dict[str, Any]:
        self._rules(params["workspaceId"], params["name"])
        del self.rules[(params["workspaceId"], params["name"])]
        return {}

    def create_alert_manager_definition(self, params: dict[str, Any]) -> dict[str, Any]:
        self._find(params["workspaceId"])
        if params["workspaceId"] in self.alert_managers:
            raise ApiError("ConflictException", "The workspace has an alert manager definition already", 409)
        return self._store_alert_manager(params)

    def put_alert_manager_definition(self, params: dict[str, Any]) -> dict[str, Any]:
        self.describe_alert_manager_definition(params)
        return self._store_alert_manager(params)

    def describe_alert_manager_definition(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["workspaceId"] not in self.alert_managers:
            raise ApiError("ResourceNotFoundException", "The workspace has no alert manager definition", 404)
        return {"alertManagerDefinition": self.alert_managers[params["workspaceId"]]}

    def delete_alert_manager_definition(self, params: dict[str, Any]) -> dict[str, Any]:
        self.describe_alert_manager_definition(params)
        del self.alert_managers[params["workspaceId"]]
        return {}

    def list_tags_for_resource(self, params: dict[str, Any]) -> dict[str, Any]:
        for owned in [*self.workspaces.values(), *self.rules.values()]:
            if owned["arn"] == params["resourceArn"]:
                return {"tags": owned["tags"]}
        raise ApiError("ResourceNotFoundException", f"{params['resourceArn']} does not exist", 404)

    def _store_alert_manager(self, params: dict[str, Any]) -> dict[str, Any]:
        if "alertmanager_config" not in _document(params["data"], "Alert manager definition"):
            raise ApiError("ValidationException", "Alert manager definition has no alertmanager_config")
        now = time.time()
        status = {"statusCode": "ACTIVE"}
        definition = {"status": status, "data": params["data"], "createdAt": now, "modifiedAt": now}
        self.alert_managers[params["workspaceId"]] = definition
        return definition

    def _find(self, number: str) -> dict[str, Any]:
        if number not in self.workspaces:
            raise ApiError("ResourceNotFoundException", f"Workspace {number} does not exist", 404)
        return self.workspaces[number]

    def _rules(self, workspace: str, name: str) -> dict[str, Any]:
        if (workspace, name) not in self.rules:
            raise ApiError("ResourceNotFoundException", f"Rule groups namespace {name} does not exist", 404)
        return self.rules[(workspace, name)]


def _document(data: bytes, what: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(data)
    except yaml.YAMLError as error:
        raise ApiError("ValidationException", f"{what} is not YAML: {error}") from None
    if not isinstance(document, dict):
        raise ApiError("ValidationException", f"{what} is not a mapping")
    return document


def _check_rules(data: bytes) -> None:
    groups = _document(data, "Rule groups file").get("groups")
    if not isinstance(groups, list) or not groups:
        raise ApiError("ValidationException", "Rule groups file has no groups")
    for group in groups:
        rules = group.get("rules") if isinstance(group, dict) else None
        if not rules or "name" not in group:
            raise ApiError("ValidationException", f"Rule group {group!r} needs a name and rules")
        for rule in rules:
            if not rule.get("expr") or ("alert" in rule) == ("record" in rule):
                raise ApiError("ValidationException", f"Rule {rule!r} needs expr and one of alert and record")


def register(prometheus: Prometheus) -> None:
    """AWS::APS::Workspace and AWS::APS::RuleGroupsNamespace."""

    def attributes(workspace_arn: str) -> dict[str, Any]:
        workspace = prometheus._find(_number(workspace_arn))
        return {
            "Arn": workspace["arn"],
            "WorkspaceId": workspace["workspaceId"],
            "PrometheusEndpoint": workspace["prometheusEndpoint"],
        }

    def define_alerts(number: str, old: str | None, new: str | None) -> None:
        if new and new != old:
            action = "Put" if old else "Create"
            prometheus.call(f"{action}AlertManagerDefinition", {"workspaceId": number, "data": new.encode()})
        elif old and not new:
            prometheus.call("DeleteAlertManagerDefinition", {"workspaceId": number})

    def create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        own = {key: value for key, value in properties.items() if key != "AlertManagerDefinition"}
        workspace = prometheus.call("CreateWorkspace", models.from_template("amp", "CreateWorkspace", own))
        define_alerts(workspace["workspaceId"], None, properties.get("AlertManagerDefinition"))
        return workspace["arn"], attributes(workspace["arn"])

    def update(
        workspace_arn: str, old: dict[str, Any], new: dict[str, Any], stack: str
    ) -> tuple[str, dict[str, Any]]:
        number = _number(workspace_arn)
        if old.get("Alias") != new.get("Alias"):
            prometheus.call("UpdateWorkspaceAlias", {"workspaceId": number, "alias": new.get("Alias", "")})
        define_alerts(number, old.get("AlertManagerDefinition"), new.get("AlertManagerDefinition"))
        return workspace_arn, attributes(workspace_arn)

    def delete(workspace_arn: str, properties: dict[str, Any]) -> None:
        prometheus.call("DeleteWorkspace", {"workspaceId": _number(workspace_arn)})

    cloudformation.register("AWS::APS::Workspace", create, delete, update, replace_on=("KmsKeyArn",))

    def rules(properties: dict[str, Any]) -> dict[str, Any]:
        return {
            "workspaceId": _number(properties["Workspace"]),
            "name": properties["Name"],
            "data": properties["Data"].encode(),
        }

    def rules_create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        params = {**rules(properties), "tags": cloudformation.tag_map(properties)}
        made = prometheus.call("CreateRuleGroupsNamespace", params)["arn"]
        return made, {"Arn": made}

    def rules_update(
        made: str, old: dict[str, Any], new: dict[str, Any], stack: str
    ) -> tuple[str, dict[str, Any]]:
        prometheus.call("PutRuleGroupsNamespace", rules(new))
        return made, {"Arn": made}

    def rules_delete(made: str, properties: dict[str, Any]) -> None:
        workspace, name = made.split("/")[-2:]
        prometheus.call("DeleteRuleGroupsNamespace", {"workspaceId": workspace, "name": name})

    cloudformation.register(
        "AWS::APS::RuleGroupsNamespace",
        rules_create,
        rules_delete,
        rules_update,
        replace_on=("Name", "Workspace"),
    )


def _number(workspace_arn: str) -> str:
    return workspace_arn.rpartition("/")[2]
