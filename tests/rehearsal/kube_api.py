"""A Kubernetes API for tests of the emulated AWS: it keeps what is applied, nothing acts on it.

It lets the custom resources of our stacks run against something that speaks TLS and checks EKS tokens.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rehearsal import tls

_KINDS = {
    "v1": {
        "Namespace": ("namespaces", False),
        "PersistentVolume": ("persistentvolumes", False),
        "PersistentVolumeClaim": ("persistentvolumeclaims", True),
        "ServiceAccount": ("serviceaccounts", True),
        "ConfigMap": ("configmaps", True),
        "Secret": ("secrets", True),
        "Service": ("services", True),
    },
    "apps/v1": {"Deployment": ("deployments", True)},
    "networking.k8s.io/v1": {"NetworkPolicy": ("networkpolicies", True)},
    "rbac.authorization.k8s.io/v1": {
        "Role": ("roles", True),
        "RoleBinding": ("rolebindings", True),
        "ClusterRole": ("clusterroles", False),
        "ClusterRoleBinding": ("clusterrolebindings", False),
    },
    "ray.io/v1": {"RayService": ("rayservices", True)},
    "scheduling.k8s.io/v1": {"PriorityClass": ("priorityclasses", False)},
    "storage.k8s.io/v1": {"StorageClass": ("storageclasses", False)},
}


class KubeApi:
    """Serves on 127.0.0.1 at a free port. `objects` maps API paths to what was applied there."""

    def __init__(self, folder: Path, aws_url: str, aws_ca_pem: Path | None = None, cluster: str = "any"):
        self.ca_pem, certificate, key = tls.write(folder)
        self.objects: dict[str, dict[str, Any]] = {}
        self.refused = 0
        """Requests whose token the emulated STS did not confirm."""
        self.aws_url = aws_url
        self._aws_ca_pem, self._cluster = aws_ca_pem, cluster
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def authorized(self, header: str) -> bool:
        """Whether the bearer token is a presigned STS call that the emulated STS answers."""
        token = header.removeprefix("Bearer k8s-aws-v1.")
        url = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode(errors="replace")
        if not url.startswith(self.aws_url):
            return False
        try:
            context = ssl.create_default_context(cafile=self._aws_ca_pem)
            request = urllib.request.Request(url, headers={"x-k8s-aws-id": self._cluster})
            with urllib.request.urlopen(request, context=context) as answer:
                return answer.status == 200
        except urllib.error.URLError:
            return False


def _handler(api: KubeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            group = self.path.removeprefix("/apis/").removeprefix("/api/")
            if group in _KINDS:
                kinds = _KINDS[group].items()
                found = [{"name": name, "kind": kind, "namespaced": spaced} for kind, (name, spaced) in kinds]
                self._answer(200, {"kind": "APIResourceList", "resources": found})
            elif self.path in api.objects:
                self._answer(200, api.objects[self.path])
            else:
                self._answer(404, {"kind": "Status", "message": f"{self.path} not found"})

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            api.objects[self.path.partition("?")[0]] = body
            self._answer(200, body)

        def do_DELETE(self) -> None:
            found = api.objects.pop(self.path.partition("?")[0], None)
            self._answer(404 if found is None else 200, {"kind": "Status"})

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            if not api.authorized(self.headers.get("Authorization", "")):
                api.refused += 1
                status, document = 401, {"kind": "Status", "message": "Unauthorized"}
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: pytest shows what matters."""

    return Handler
