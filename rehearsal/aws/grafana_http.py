"""The HTTP API inside an emulated Grafana workspace: data sources, folders, dashboards; no pages."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_UID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_RANK = {"VIEWER": 0, "EDITOR": 1, "ADMIN": 2}


class Refused(Exception):
    """An error answer of Grafana."""

    def __init__(self, status: int, message: str):
        self.status, self.message = status, message
        super().__init__(message)


@dataclass
class Token:
    key: str
    role: str
    expires_at: float


@dataclass
class Site:
    """What one workspace holds. Every map is by uid."""

    tokens: dict[str, Token] = field(default_factory=dict)
    """By the id of its service account and its own, joined by a slash."""
    data_sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    folders: dict[str, dict[str, Any]] = field(default_factory=dict)
    dashboards: dict[str, dict[str, Any]] = field(default_factory=dict)
    """{dashboard, folderUid}"""

    def answer(
        self, method: str, path: str, query: dict[str, list[str]], headers: dict[str, str], body: bytes
    ) -> tuple[int, Any]:
        """(status, document) of one request; `path` starts with /api/."""
        try:
            token = self._token(headers.get("authorization", ""))
            for pattern, handlers in _ROUTES.items():
                match = re.fullmatch(pattern, path)
                if match is None or method not in handlers:
                    continue
                role, handler = handlers[method]
                if _RANK[token.role] < _RANK[role]:
                    raise Refused(403, f"You'll need the role {role} for {method} {path}")
                document = json.loads(body) if body else {}
                return 200, handler(self, *match.groups(), document, query)
            raise Refused(404, f"Not found: {method} {path}")
        except Refused as refused:
            return refused.status, {"message": refused.message}

    def _token(self, header: str) -> Token:
        key = header.removeprefix("Bearer ")
        for token in self.tokens.values():
            if token.key == key and time.time() < token.expires_at:
                return token
        raise Refused(401, "Invalid API key")

    def _find(self, kind: str, uid: str) -> dict[str, Any]:
        found = getattr(self, kind).get(uid)
        if found is None:
            raise Refused(404, f"{kind} {uid} not found")
        return found

    def add_data_source(self, document: dict[str, Any], query: Any) -> dict[str, Any]:
        _require(document, "name", "type", "access", "uid")
        if document["uid"] in self.data_sources:
            raise Refused(409, "data source with the same uid already exists")
        self._name_is_free(document)
        self.data_sources[_uid(document)] = document
        return {"datasource": document, "message": "Datasource added", "name": document["name"]}

    def set_data_source(self, uid: str, document: dict[str, Any], query: Any) -> dict[str, Any]:
        self._find("data_sources", uid)
        _require(document, "name", "type", "access")
        self._name_is_free({**document, "uid": uid})
        self.data_sources[uid] = {**document, "uid": uid}
        return {"datasource": self.data_sources[uid], "message": "Datasource updated"}

    def _name_is_free(self, document: dict[str, Any]) -> None:
        for uid, source in self.data_sources.items():
            if source["name"] == document["name"] and uid != document["uid"]:
                raise Refused(409, "data source with the same name already exists")

    def add_folder(self, document: dict[str, Any], query: Any) -> dict[str, Any]:
        _require(document, "title")
        if document["uid"] in self.folders:
            raise Refused(412, "a folder with the same uid already exists")
        self.folders[_uid(document)] = document
        return document

    def set_folder(self, uid: str, document: dict[str, Any], query: Any) -> dict[str, Any]:
        folder = self._find("folders", uid)
        if not document.get("overwrite") and "version" not in document:
            raise Refused(412, "the folder has been changed by someone else")
        folder["title"] = document["title"]
        return folder

    def delete_folder(self, uid: str, document: Any, query: Any) -> dict[str, Any]:
        self._find("folders", uid)
        del self.folders[uid]
        for name in [name for name, held in self.dashboards.items() if held["folderUid"] == uid]:
            del self.dashboards[name]
        return {"message": "Folder deleted"}

    def set_dashboard(self, document: dict[str, Any], query: Any) -> dict[str, Any]:
        dashboard = document.get("dashboard", {})
        if not dashboard.get("title"):
            raise Refused(400, "Dashboard title cannot be empty")
        folder = document.get("folderUid", "")
        if folder and folder not in self.folders:
            raise Refused(400, "folder not found")
        uid = _uid(dashboard)
        old = self.dashboards.get(uid)
        if old is not None and not document.get("overwrite"):
            raise Refused(412, "A dashboard with the same uid already exists")
        version = old["dashboard"]["version"] + 1 if old else 1
        self.dashboards[uid] = {"dashboard": {**dashboard, "version": version}, "folderUid": folder}
        return {"uid": uid, "version": version, "status": "success", "url": f"/d/{uid}"}

    def get_dashboard(self, uid: str, document: Any, query: Any) -> dict[str, Any]:
        held = self._find("dashboards", uid)
        return {"dashboard": held["dashboard"], "meta": {"folderUid": held["folderUid"]}}

    def delete(self, kind: str) -> Callable[..., dict[str, Any]]:
        def run(uid: str, document: Any, query: Any) -> dict[str, Any]:
            self._find(kind, uid)
            del getattr(self, kind)[uid]
            return {"message": "deleted"}

        return run

    def search(self, document: Any, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        wanted = query.get("folderUIDs")
        return [
            {
                "uid": uid,
                "title": held["dashboard"]["title"],
                "type": "dash-db",
                "folderUid": held["folderUid"],
            }
            for uid, held in self.dashboards.items()
            if wanted is None or held["folderUid"] in wanted
        ]


def _require(document: dict[str, Any], *members: str) -> None:
    missing = [member for member in members if not document.get(member)]
    if missing:
        raise Refused(400, f"bad request data: {', '.join(missing)} missing")


def _uid(document: dict[str, Any]) -> str:
    uid = str(document.get("uid", ""))
    if not _UID.fullmatch(uid):
        raise Refused(400, f"uid {uid!r} contains illegal characters or is too long")
    return uid


_Handlers = dict[str, tuple[str, Callable[..., Any]]]
_ROUTES: dict[str, _Handlers] = {
    r"/api/datasources": {"POST": ("ADMIN", Site.add_data_source)},
    r"/api/datasources/uid/([^/]+)": {
        "GET": ("ADMIN", lambda site, uid, *_: site._find("data_sources", uid)),
        "PUT": ("ADMIN", Site.set_data_source),
        "DELETE": ("ADMIN", lambda site, *args: site.delete("data_sources")(*args)),
    },
    r"/api/folders": {"POST": ("EDITOR", Site.add_folder)},
    r"/api/folders/([^/]+)": {
        "GET": ("VIEWER", lambda site, uid, *_: site._find("folders", uid)),
        "PUT": ("EDITOR", Site.set_folder),
        "DELETE": ("EDITOR", Site.delete_folder),
    },
    r"/api/dashboards/db": {"POST": ("EDITOR", Site.set_dashboard)},
    r"/api/dashboards/uid/([^/]+)": {
        "GET": ("VIEWER", Site.get_dashboard),
        "DELETE": ("EDITOR", lambda site, *args: site.delete("dashboards")(*args)),
    },
    r"/api/search": {"GET": ("VIEWER", Site.search)},
}
