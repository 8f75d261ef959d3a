"""A Grafana HTTP client of a few lines, and a token for it that lives no longer than it is used."""

import contextlib
import json
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import boto3

ACCOUNT_PREFIX = "skypod-push-"
_TOKEN_LIVES_S = 600
_TIMEOUT_S = 30
# A workspace that was just made, or whose settings just changed, does not answer at once.
_PATIENCE_S = 180
_POLL_S = 3


class GrafanaError(Exception):
    """Grafana's answer to a request that it refused."""

    def __init__(self, status: int, message: str):
        self.status = status
        super().__init__(f"{status}: {message}")


class Grafana:
    """Objects are written by their uid, so that every write may be repeated."""

    def __init__(self, url: str, token: str):
        self._url = url.rstrip("/")
        self._token = token

    def put_data_source(self, source: dict[str, Any]) -> None:
        path = f"/api/datasources/uid/{source['uid']}"
        if self.get(path) is None:
            self.call("POST", "/api/datasources", source)
        else:
            self.call("PUT", path, source)

    def put_folder(self, uid: str, title: str) -> None:
        path = f"/api/folders/{uid}"
        if self.get(path) is None:
            self.call("POST", "/api/folders", {"uid": uid, "title": title})
        else:
            self.call("PUT", path, {"title": title, "overwrite": True})

    def put_dashboard(self, dashboard: dict[str, Any], folder_uid: str) -> None:
        self.call(
            "POST",
            "/api/dashboards/db",
            {"dashboard": {**dashboard, "id": None}, "folderUid": folder_uid, "overwrite": True},
        )

    def delete(self, path: str) -> None:
        """Delete one object; one that is gone already is fine."""
        try:
            self.call("DELETE", path)
        except GrafanaError as error:
            if error.status != 404:
                raise

    def get(self, path: str) -> Any:
        """The answer, or None when there is no such object."""
        try:
            return self.call("GET", path)
        except GrafanaError as error:
            if error.status == 404:
                return None
            raise

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request. Raises GrafanaError, whose text never holds the token."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            request = urllib.request.Request(  # noqa: S310 - the address comes from the stack
                self._url + path,
                method=method,
                data=None if body is None else json.dumps(body).encode(),
                headers={
                    "Authorization": f"Bearer {self._token}",
                    "Accept": "application/json",
                    "Content-Type": "application/json",
                },
            )
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
                    return json.loads(response.read() or b"null")
            except urllib.error.HTTPError as error:
                failure = GrafanaError(error.code, f"{method} {path}: {_message(error)}")
                passing = error.code in (429, 502, 503, 504)
            except urllib.error.URLError as error:
                failure = GrafanaError(0, f"{method} {self._url}{path}: {error.reason}")
                passing = True
            if not passing or time.monotonic() > deadline:
                raise failure from None
            time.sleep(_POLL_S)


@contextlib.contextmanager
def connect(
    target: dict[str, str], session: boto3.Session | None = None, region: str | None = None
) -> Iterator[Grafana]:
    """A client for `target`: {workspaceId, endpoint} of Managed Grafana, or {url, secretArn} of another.

    For Managed Grafana a service account is made and deleted again, and with it its token.
    """
    session = session or boto3.session.Session()
    if "secretArn" in target:
        secret = session.client("secretsmanager", region_name=region).get_secret_value(
            SecretId=target["secretArn"]
        )
        yield Grafana(target["url"], secret["SecretString"].strip())
        return
    client = session.client("grafana", region_name=region)
    workspace = target["workspaceId"]
    name = f"{ACCOUNT_PREFIX}{uuid.uuid4().hex[:12]}"
    account = client.create_workspace_service_account(workspaceId=workspace, name=name, grafanaRole="ADMIN")[
        "id"
    ]
    try:
        token = client.create_workspace_service_account_token(
            workspaceId=workspace, serviceAccountId=account, name=name, secondsToLive=_TOKEN_LIVES_S
        )["serviceAccountToken"]["key"]
        endpoint = target["endpoint"]
        yield Grafana(endpoint if "://" in endpoint else f"https://{endpoint}", token)
    finally:
        client.delete_workspace_service_account(workspaceId=workspace, serviceAccountId=account)


def leftover_accounts(client: Any, workspace: str) -> list[str]:
    """Ids of service accounts of ours: those of an invocation that was cut short."""
    pages = client.get_paginator("list_workspace_service_accounts").paginate(workspaceId=workspace)
    found = [account for page in pages for account in page["serviceAccounts"]]
    return [account["id"] for account in found if account["name"].startswith(ACCOUNT_PREFIX)]


def _message(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:300] or str(error.reason)
