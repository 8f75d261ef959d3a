"""Custom::GrafanaDashboards: a data source, a folder and the dashboards in it, on any Grafana.

Properties: Target (JSON, see `grafana_client.connect`), DataSource (JSON), Folder (JSON: uid, title) and
Dashboards (JSON list). Dashboards that an update no longer names are deleted.
"""

import json
from typing import Any

import boto3
from botocore.exceptions import ClientError

from .grafana_client import Grafana, GrafanaError, connect, leftover_accounts
from .reply import Done, answer


def handler(event: dict[str, Any], context: Any) -> None:
    answer(event, context, _work)


def _work(event: dict[str, Any], context: Any) -> Done:
    wanted = _Content(event["ResourceProperties"])
    if event["RequestType"] == "Delete":
        try:
            with connect(wanted.target) as grafana:
                wanted.remove(grafana)
        except ClientError as error:
            if error.response["Error"]["Code"] != "ResourceNotFoundException":
                raise  # otherwise the workspace or the secret is gone, and what was pushed with it
        except GrafanaError:
            # The rollback of a push that was refused is refused again.
            if not event["PhysicalResourceId"].startswith("failed-"):
                raise
        return Done(event["PhysicalResourceId"])
    _clear_leftovers(wanted.target)
    with connect(wanted.target) as grafana:
        grafana.put_data_source(wanted.source)
        grafana.put_folder(wanted.folder["uid"], wanted.folder["title"])
        for dashboard in wanted.dashboards:
            grafana.put_dashboard(dashboard, wanted.folder["uid"])
        old = event.get("OldResourceProperties")
        if old and _Content(old).physical_id == wanted.physical_id:
            for uid in _Content(old).uids - wanted.uids:
                grafana.delete(f"/api/dashboards/uid/{uid}")
    return Done(wanted.physical_id, {"Folder": wanted.folder["uid"]})


def _clear_leftovers(target: dict[str, str]) -> None:
    if "workspaceId" not in target:
        return
    client = boto3.client("grafana")
    for account in leftover_accounts(client, target["workspaceId"]):
        client.delete_workspace_service_account(workspaceId=target["workspaceId"], serviceAccountId=account)


class _Content:
    """What one set of properties asks for."""

    def __init__(self, properties: dict[str, str]):
        self.target: dict[str, str] = json.loads(properties["Target"])
        self.source: dict[str, Any] = json.loads(properties["DataSource"])
        self.folder: dict[str, str] = json.loads(properties["Folder"])
        self.dashboards: list[dict[str, Any]] = json.loads(properties["Dashboards"])

    @property
    def physical_id(self) -> str:
        """Another Grafana or folder is another resource, so that CloudFormation clears the old one."""
        place = self.target.get("workspaceId") or self.target["url"]
        return f"{place}/{self.folder['uid']}/{self.source['uid']}"

    @property
    def uids(self) -> set[str]:
        return {dashboard["uid"] for dashboard in self.dashboards}

    def remove(self, grafana: Grafana) -> None:
        """The folder takes the dashboards in it along."""
        grafana.delete(f"/api/folders/{self.folder['uid']}")
        grafana.delete(f"/api/datasources/uid/{self.source['uid']}")
