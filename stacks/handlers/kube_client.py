"""A Kubernetes client of a few lines: an EKS token, the cluster's own CA, and server-side apply."""

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
from botocore.signers import RequestSigner

FIELD_MANAGER = "skypod"
TRANSIENT = (401, 403, 429, 502, 503, 504)
"""Answers that pass: a new access entry takes some seconds until the API server knows it."""
_TIMEOUT_S = 30
_PAGE = 500


class ApiError(Exception):
    """The API server's answer to a request that it refused."""

    def __init__(self, status: int, message: str):
        self.status = status
        super().__init__(f"{status}: {message}")


class Unreachable(ApiError):
    """No answer from the API server; to be retried like one that says 503."""

    def __init__(self, cluster: str, endpoint: str, why: object):
        Exception.__init__(
            self,
            f"the Kubernetes API of cluster {cluster} does not answer at {endpoint}: {why}; see that the "
            f"cluster is ACTIVE (`aws eks describe-cluster --name {cluster}`) and that its endpoint is "
            "open to this function, then run it again",
        )
        self.status = 503


class KubeClient:
    """Talks to the API server of one EKS cluster as the caller's own IAM identity."""

    def __init__(self, cluster_name: str):
        session = boto3.session.Session()
        self._cluster = cluster_name
        cluster = session.client("eks").describe_cluster(name=cluster_name)["cluster"]
        self._endpoint = cluster["endpoint"].rstrip("/")
        authority = base64.b64decode(cluster["certificateAuthority"]["data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        self._token = eks_token(session, cluster_name)
        self._resources: dict[tuple[str, str], dict[str, Any]] = {}

    def apply(self, manifest: dict[str, Any]) -> None:
        """Server-side apply: create the object, or take over the fields that the manifest names."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"}
        self._call(
            "PATCH",
            f"{self._path(manifest)}?{urllib.parse.urlencode(query)}",
            manifest,
            "application/apply-patch+yaml",
        )

    def delete(self, manifest: dict[str, Any]) -> None:
        """Ask for the object's deletion; one that is gone already is fine."""
        try:
            self._call(
                "DELETE", self._path(manifest), {"propagationPolicy": "Foreground"}, "application/json"
            )
        except ApiError as error:
            if error.status != 404:
                raise

    def exists(self, manifest: dict[str, Any]) -> bool:
        return self.get(manifest) is not None

    def get(self, manifest: dict[str, Any]) -> dict[str, Any] | None:
        """The object that the manifest names, as it is, or None when there is none."""
        try:
            return self._call("GET", self._path(manifest))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, version: str, kind: str) -> Iterator[dict[str, Any]]:
        """All objects of a kind, of every namespace."""
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        path = f"{root}/{self._resource(version, kind)['name']}"
        query = {"limit": str(_PAGE)}
        while True:
            page = self._call("GET", f"{path}?{urllib.parse.urlencode(query)}")
            yield from page["items"]
            query["continue"] = page.get("metadata", {}).get("continue", "")
            if not query["continue"]:
                return

    def _path(self, manifest: dict[str, Any]) -> str:
        version, kind = manifest["apiVersion"], manifest["kind"]
        resource = self._resource(version, kind)
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        namespace = manifest["metadata"].get("namespace", "default")
        scope = f"/namespaces/{namespace}" if resource["namespaced"] else ""
        return f"{root}{scope}/{resource['name']}/{manifest['metadata']['name']}"

    def _resource(self, version: str, kind: str) -> dict[str, Any]:
        if (version, kind) not in self._resources:
            root = f"/apis/{version}" if "/" in version else f"/api/{version}"
            for resource in self._call("GET", root)["resources"]:
                if "/" not in resource["name"]:
                    self._resources[version, resource["kind"]] = resource
        if (version, kind) not in self._resources:
            raise ApiError(404, f"the cluster knows no {kind} in {version}")
        return self._resources[version, kind]

    def _call(self, method: str, path: str, body: Any = None, content_type: str = "") -> Any:
        request = urllib.request.Request(  # noqa: S310 - the address comes from eks:DescribeCluster
            self._endpoint + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Accept": "application/json"},
        )
        if content_type:
            request.add_header("Content-Type", content_type)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=self._tls) as response:  # noqa: S310
                return json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                message = json.loads(text)["message"]
            except (ValueError, KeyError, TypeError):
                message = text[:300] or error.reason
            raise ApiError(error.code, f"{method} {path.split('?')[0]}: {message}") from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", "") or error or type(error).__name__
            raise Unreachable(self._cluster, self._endpoint, why) from error


def eks_token(session: boto3.session.Session, cluster_name: str, expires_s: int = 60) -> str:
    """A bearer token: a presigned GetCallerIdentity with the cluster's name in a signed header."""
    client = session.client("sts")
    signer = RequestSigner(
        client.meta.service_model.service_id,
        client.meta.region_name,
        "sts",
        "v4",
        session.get_credentials(),
        session.events,
    )
    url = signer.generate_presigned_url(
        {
            "method": "GET",
            "url": f"{client.meta.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15",
            "body": {},
            "headers": {"x-k8s-aws-id": cluster_name},
            "context": {},
        },
        region_name=client.meta.region_name,
        expires_in=expires_s,
        operation_name="",
    )
    return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
