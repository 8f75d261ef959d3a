"""The ordinary Kubernetes client for an EKS cluster, with tokens that renew themselves."""

from __future__ import annotations

import base64
import ssl
import time
from typing import Any

from botocore.signers import RequestSigner
from kubernetes import client

TOKEN_PREFIX = "k8s-aws-v1."  # noqa: S105 - the published prefix of every EKS token
CLUSTER_HEADER = "x-k8s-aws-id"
_SIGNED_FOR_S = 60
# EKS honours a token for 15 minutes from its signing.
_RENEW_AFTER_S = 10 * 60


def token(session: Any, cluster_name: str) -> str:
    """An EKS bearer token: a presigned sts:GetCallerIdentity URL that is valid for this cluster only.

    session: a boto3.Session. The URL is that of the session's STS endpoint (AWS_ENDPOINT_URL counts).
    """
    sts = session.client("sts")
    signer = RequestSigner(
        sts.meta.service_model.service_id,
        session.region_name,
        "sts",
        "v4",
        session.get_credentials(),
        session.events,
    )
    url = signer.generate_presigned_url(
        {
            "method": "GET",
            "url": f"{sts.meta.endpoint_url.rstrip('/')}/?Action=GetCallerIdentity&Version=2011-06-15",
            "body": {},
            "headers": {CLUSTER_HEADER: cluster_name},
            "context": {},
        },
        region_name=session.region_name,
        expires_in=_SIGNED_FOR_S,
        operation_name="",
    )
    return TOKEN_PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def connect(session: Any, eks_cluster_name: str) -> client.ApiClient:
    """A client for the cluster's API, as the session's own identity.

    Raises botocore's ClientError when the cluster does not exist or may not be described.
    """
    cluster = session.client("eks").describe_cluster(name=eks_cluster_name)["cluster"]
    return connect_to(
        session,
        eks_cluster_name,
        cluster["endpoint"],
        base64.b64decode(cluster["certificateAuthority"]["data"]),
    )


def connect_to(session: Any, eks_cluster_name: str, endpoint: str, ca_pem: bytes) -> client.ApiClient:
    """As `connect`, for a known endpoint and certificate authority (PEM)."""
    settings = client.Configuration()
    settings.host = endpoint
    signed_at = 0.0

    def renew(configuration: client.Configuration) -> None:
        nonlocal signed_at
        if time.monotonic() - signed_at > _RENEW_AFTER_S or not signed_at:
            configuration.api_key["authorization"] = f"Bearer {token(session, eks_cluster_name)}"
            signed_at = time.monotonic()

    settings.refresh_api_key_hook = renew
    renew(settings)
    if endpoint.startswith(("https://127.0.0.1", "https://localhost")):
        # A proxy of the user's must not stand between this machine and itself.
        settings.proxy = None
    api = client.ApiClient(settings)
    # The client wants the authority as a file; its connection pools take it from memory, and no file is left.
    pools = api.rest_client.pool_manager.connection_pool_kw
    pools.pop("ca_certs", None)
    pools["ssl_context"] = ssl.create_default_context(cadata=ca_pem.decode())
    return api
