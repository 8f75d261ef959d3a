"""Custom::KubeObjects: applies Kubernetes objects in order, and deletes them in reverse.

Properties: Cluster (EKS name), Manifests (JSON list). Objects that an update no longer names are deleted.
A first apply that is refused removes what it made. A delete returns only when the objects are gone, so that
nothing is left for a cluster that is deleted next.
"""

import json
import time
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from .kube_client import TRANSIENT, ApiError, KubeClient
from .reply import Done, answer

_POLL_S = 2
_PATIENCE_S = 600
_ACCESS_PATIENCE_S = 120


class RefusedError(Exception):
    """The API server did not take an object, or was not there to take it."""


def handler(event: dict[str, Any], context: Any) -> None:
    answer(event, context, _work)


def _work(event: dict[str, Any], context: Any) -> Done:
    properties = event["ResourceProperties"]
    cluster = properties["Cluster"]
    manifests: list[dict[str, Any]] = json.loads(properties["Manifests"])
    deleting = event["RequestType"] == "Delete"
    if deleting and event["PhysicalResourceId"].startswith("failed-"):
        # A first apply takes back itself what it made; the rest of the names may be somebody else's objects.
        return Done(event["PhysicalResourceId"])
    try:
        client = KubeClient(cluster)
    except ClientError as error:
        if deleting and error.response["Error"]["Code"] == "ResourceNotFoundException":
            return Done(event["PhysicalResourceId"])  # the cluster is gone, and its objects with it
        raise
    if deleting:
        _remove(client, manifests)
        return Done(event["PhysicalResourceId"])
    if event["RequestType"] == "Create":
        _create(client, manifests)
    else:
        for manifest in manifests:
            _patiently(client.apply, manifest)
    kept = {_identity(manifest) for manifest in manifests}
    old = event.get("OldResourceProperties", {})
    if old.get("Cluster") == cluster:
        _remove(client, [m for m in json.loads(old["Manifests"]) if _identity(m) not in kept])
    return Done(f"{cluster}/{event['LogicalResourceId']}", {"Applied": str(len(manifests))})


def _create(client: KubeClient, manifests: list[dict[str, Any]]) -> None:
    """Apply all, or remove those that were not there before."""
    made = []
    try:
        for manifest in manifests:
            if not _patiently(client.exists, manifest):
                made.append(manifest)
            _patiently(client.apply, manifest)
    except Exception as error:
        try:
            _remove(client, made)
        except Exception as left:
            raise RefusedError(f"{error}; what was applied before is not removed: {left}") from error
        raise


def _identity(manifest: dict[str, Any]) -> tuple[str, ...]:
    metadata = manifest["metadata"]
    return manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""), metadata["name"]


def _patiently(ask: Callable[[dict[str, Any]], Any], manifest: dict[str, Any]) -> Any:
    deadline = time.monotonic() + _ACCESS_PATIENCE_S
    while True:
        try:
            return ask(manifest)
        except ApiError as error:
            if error.status not in TRANSIENT or time.monotonic() > deadline:
                raise RefusedError(f"{manifest['kind']} {manifest['metadata']['name']}: {error}") from error
        time.sleep(_POLL_S)


def _remove(client: KubeClient, manifests: list[dict[str, Any]]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    for manifest in reversed(manifests):
        _patiently(client.delete, manifest)
        while _patiently(client.exists, manifest):
            if time.monotonic() > deadline:
                kind, name = manifest["kind"], manifest["metadata"]["name"]
                raise TimeoutError(
                    f"{kind} {name} is still there after {_PATIENCE_S} s; something of it is in use: "
                    "delete what runs in the namespace, then destroy again"
                )
            time.sleep(_POLL_S)
