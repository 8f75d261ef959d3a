"""Drills on a deployed environment: what to do to its nodes and pods, printed or done.

HyperPod's two calls and its two node labels start the same recovery; see the page "Manually quarantine,
replace, or reboot a node" of its guide. CPU nodes, such as the Ray head's, are not replaced by it.
"""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import boto3
from kubernetes import client

from cdk_app import kube, outputs, settings
from stacks.manifests.pods import HEALTH_LABEL
from stacks.outputs import Outputs
from training.errors import ConfigError, SubstrateError

ACTIONS = ("reboot", "replace", "kill-pod")
WAYS = ("api", "label")
TARGETS = ("worker", "head")
_CALLS = {"reboot": "batch-reboot-cluster-nodes", "replace": "batch-replace-cluster-nodes"}
_LABELS = {"reboot": "UnschedulablePendingReboot", "replace": "UnschedulablePendingReplacement"}
_INSTANCE = re.compile(r"i-[0-9a-f]{8}(?:[0-9a-f]{9})?$")
_EXPECT = {
    "reboot": "its pods fail when it goes down; the node is back after some minutes",
    "replace": "everything on its own disks is lost; a GPU node takes 30 to 40 minutes to come back",
    "kill-pod": "KubeRay makes another pod; the node stays",
}


@dataclass(frozen=True)
class Order:
    """One thing to do: to whom, the command that does it, and the same as a call."""

    pod: str
    node: str
    command: str
    expect: str
    perform: Callable[[], None]

    def to_json(self) -> dict[str, str]:
        return {"pod": self.pod, "node": self.node, "command": self.command, "expect": self.expect}


def order(
    environment_name: str, *, cluster: str, target: str, action: str, way: str, node: str | None
) -> Order:
    """What is to be done to a worker's or the head's node or pod of the RayCluster; `node` chooses a worker.

    Raises ConfigError for what HyperPod does not do, SubstrateError when the pod or its node is not there.
    """
    if target == "head" and action == "replace":
        raise ConfigError(
            "HyperPod does not replace CPU nodes, and the Ray head is on one",
            "drill the loss of the head with --action reboot or kill-pod",
        )
    environment = settings.load(environment_name)
    session = boto3.Session(region_name=environment.region)
    deployed = outputs.read(session, environment)
    core = client.CoreV1Api(kube.connect(session, deployed.eks_cluster_name))
    pod = _pod(core, deployed.namespace, cluster, target, node)
    if action == "kill-pod":
        return _kill(core, pod)
    if way == "label":
        return _label(core, pod, action)
    return _call(session, deployed, pod, action)


def _pod(core: client.CoreV1Api, namespace: str, cluster: str, target: str, node: str | None) -> Any:
    selector = f"ray.io/cluster={cluster},ray.io/node-type={target}"
    pods = core.list_namespaced_pod(namespace, label_selector=selector).items
    running = sorted(
        (pod for pod in pods if pod.status.phase == "Running"), key=lambda pod: pod.metadata.name
    )
    found = [pod for pod in running if node in (None, pod.spec.node_name)]
    if not found:
        where = f" on node {node}" if node else ""
        nodes = ", ".join(str(pod.spec.node_name) for pod in running)
        raise SubstrateError(
            f"no {target} of RayCluster {namespace}/{cluster} runs{where}",
            f"choose --node among {nodes}" if running else "see `skypod cluster status`",
        )
    return found[0]


def _kill(core: client.CoreV1Api, pod: Any) -> Order:
    name, namespace = pod.metadata.name, pod.metadata.namespace
    return Order(
        pod=name,
        node=pod.spec.node_name,
        command=f"kubectl -n {namespace} delete pod {name} --grace-period=0 --force",
        expect=_EXPECT["kill-pod"],
        perform=lambda: core.delete_namespaced_pod(name, namespace, grace_period_seconds=0),
    )


def _label(core: client.CoreV1Api, pod: Any, action: str) -> Order:
    node, value = pod.spec.node_name, _LABELS[action]
    return Order(
        pod=pod.metadata.name,
        node=node,
        command=f"kubectl label node {node} {HEALTH_LABEL}={value} --overwrite",
        expect=_EXPECT[action],
        perform=lambda: core.patch_node(node, {"metadata": {"labels": {HEALTH_LABEL: value}}}),
    )


def _call(session: boto3.Session, deployed: Outputs, pod: Any, action: str) -> Order:
    """Raises SubstrateError where the pod's node is none of the HyperPod cluster's."""
    node, cluster = pod.spec.node_name, deployed.hyperpod_cluster_name
    found = _INSTANCE.search(node)
    if not found:
        raise SubstrateError(
            f"node {node} is not named after an instance of HyperPod",
            f"find it with `aws sagemaker list-cluster-nodes --cluster-name {cluster}`",
        )
    instance, sagemaker = found[0], session.client("sagemaker")
    arguments = ["--cluster-name", cluster, "--node-ids", instance, "--region", session.region_name]

    def perform() -> None:
        call = getattr(sagemaker, _CALLS[action].replace("-", "_"))
        for failed in call(ClusterName=cluster, NodeIds=[instance]).get("Failed", []):
            raise SubstrateError(
                f"HyperPod does not {action} {failed['NodeId']}: {failed['ErrorCode']}: {failed['Message']}",
                "wait until the node is Running, then try again",
            )

    return Order(
        pod=pod.metadata.name,
        node=node,
        command=shlex.join(["aws", "sagemaker", _CALLS[action], *arguments]),
        expect=_EXPECT[action],
        perform=perform,
    )


def describe(found: Order, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(found.to_json())
    return f"pod   {found.pod}\nnode  {found.node}\n\n  {found.command}\n\n{found.expect}"
