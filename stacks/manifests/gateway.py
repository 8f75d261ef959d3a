"""The gateway before the RayService, behind an internal load balancer; it ends TLS itself."""

from typing import Any

from stacks.manifests import rayservice
from stacks.manifests.pods import HEALTH_LABEL, MANAGED_BY, SHARED_CLAIM, SHARED_PATH, UNPRIVILEGED, base_env
from stacks.manifests.storage import GATEWAY as GATEWAY_LABEL
from stacks.manifests.storage import service_account
from stacks.workloads import Gateway

NAME = "skypod-gateway"
CONFIG_KEY, KEYS_KEY = "gateway.toml", "keys.json"
KEYS_SECRET, TLS_SECRET = f"{NAME}-keys", f"{NAME}-tls"
ALIASES_PATH = f"{SHARED_PATH}/serving/aliases.json"
"""On the file system that it shares with rollouts; a ConfigMap's change takes a minute to arrive."""
PORT, CONTROL_PORT = 8443, 8081
_CONFIG_PATH, _KEYS_PATH, _TLS_PATH = "/etc/skypod", "/etc/skypod-keys", "/etc/skypod-tls"
# A balancer takes this long to look away; the second is the gateway's own default.
_NOTICE_S, _DEADLINE_S = 20, 180
_BALANCED = {"type": "LoadBalancer", "loadBalancerClass": "service.k8s.aws/nlb"}


def build(
    settings: Gateway, *, namespace: str, region: str, image: str, model_id: str, balanced: bool
) -> list[dict[str, Any]]:
    """Service account, network policy, ConfigMap, Deployment and Service, in order.

    `image` holds serving/ and training/ and is named by digest; `model_id` is the engine's name for the base.
    Only what is `balanced` is reached from outside the cluster. The secrets KEYS_SECRET (one file of keys)
    and TLS_SECRET (of the type kubernetes.io/tls) are made by an operator; without them its pods wait. Unless
    the engine mixes safely there is one gateway, and no moment with two: only one that sees all requests can
    keep base and adapters apart.
    """
    mixes_safely = settings.mixes_safely
    named = {"name": NAME, "namespace": namespace, "labels": {**MANAGED_BY, **GATEWAY_LABEL}}
    engine = f"http://{rayservice.NAME}-serve-svc.{namespace}.svc:8000"
    return [
        service_account(namespace, NAME),
        _may_connect(named, namespace),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": named,
            "data": {CONFIG_KEY: _config(engine, model_id, settings)},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": named,
            "spec": {
                "replicas": 2 if mixes_safely else 1,
                "strategy": _rolling() if mixes_safely else {"type": "Recreate"},
                "selector": {"matchLabels": GATEWAY_LABEL},
                "template": {"metadata": {"labels": named["labels"]}, "spec": _pod(region, image)},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {**named, "annotations": _internal_balancer() if balanced else {}},
            "spec": {
                **(_BALANCED if balanced else {"type": "ClusterIP"}),
                "selector": GATEWAY_LABEL,
                "ports": [{"name": "https", "port": 443, "targetPort": PORT, "protocol": "TCP"}],
            },
        },
    ]


def _config(engine: str, model_id: str, settings: Gateway) -> str:
    return f"""\
public_name = "{settings.public_name}"
keys = "{_KEYS_PATH}/{KEYS_KEY}"
aliases = "{ALIASES_PATH}"
host = "0.0.0.0"
port = {PORT}
control_host = "0.0.0.0"
control_port = {CONTROL_PORT}

[upstream]
url = "{engine}"
model_id = "{model_id}"
mixes_safely = {str(settings.mixes_safely).lower()}

[tls]
certificate = "{_TLS_PATH}/tls.crt"
key = "{_TLS_PATH}/tls.key"

[drain]
notice_s = {_NOTICE_S}
deadline_s = {_DEADLINE_S}
"""


def _rolling() -> dict[str, Any]:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}


def _internal_balancer() -> dict[str, str]:
    prefix = "service.beta.kubernetes.io/aws-load-balancer"
    return {
        f"{prefix}-scheme": "internal",
        f"{prefix}-nlb-target-type": "ip",
        f"{prefix}-healthcheck-protocol": "https",
        f"{prefix}-healthcheck-path": "/ready",
        f"{prefix}-healthcheck-interval": "5",
    }


def _pod(region: str, image: str) -> dict[str, Any]:
    """No rights in AWS or Kubernetes, and no queue: it goes on when trainings take the GPUs."""
    quantity = {"cpu": "1", "memory": "2Gi"}
    return {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": {HEALTH_LABEL: "Schedulable"},
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": _NOTICE_S + _DEADLINE_S + 10,
        "containers": [
            {
                "name": "gateway",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", "-m", "serving.gateway"],
                "args": ["--config", f"{_CONFIG_PATH}/{CONFIG_KEY}"],
                "env": [{"name": name, "value": value} for name, value in sorted(base_env(region).items())],
                "ports": [
                    {"name": "https", "containerPort": PORT, "protocol": "TCP"},
                    {"name": "control", "containerPort": CONTROL_PORT, "protocol": "TCP"},
                ],
                "resources": {"requests": dict(quantity), "limits": dict(quantity)},
                "livenessProbe": _probe("/live", failures=6),
                "readinessProbe": _probe("/ready", failures=2),
                "securityContext": {**UNPRIVILEGED, "readOnlyRootFilesystem": True},
                "volumeMounts": [
                    {"name": "shared", "mountPath": SHARED_PATH, "readOnly": True},
                    {"name": "config", "mountPath": _CONFIG_PATH, "readOnly": True},
                    {"name": "keys", "mountPath": _KEYS_PATH, "readOnly": True},
                    {"name": "tls", "mountPath": _TLS_PATH, "readOnly": True},
                ],
            }
        ],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": SHARED_CLAIM}},
            {"name": "config", "configMap": {"name": NAME}},
            {"name": "keys", "secret": {"secretName": KEYS_SECRET, "defaultMode": 0o400}},
            {"name": "tls", "secret": {"secretName": TLS_SECRET, "defaultMode": 0o400}},
        ],
    }


def _probe(path: str, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": PORT, "scheme": "HTTPS"},
        "periodSeconds": 5,
        "timeoutSeconds": 4,
        "failureThreshold": failures,
    }


def _may_connect(named: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The public port for whom the balancer lets in, the control port for the namespace's own pods."""
    own = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": named,
        "spec": {
            "podSelector": {"matchLabels": GATEWAY_LABEL},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": [{"protocol": "TCP", "port": PORT}]},
                {"from": [own], "ports": [{"protocol": "TCP", "port": CONTROL_PORT}]},
            ],
        },
    }
