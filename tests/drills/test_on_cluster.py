"""`skypod drill --on-cluster` against the emulated HyperPod and the Kubernetes stand-in."""

import json

import pytest
from click.testing import CliRunner, Result
from kubernetes.client import CoreV1Api

from cdk_app.command import cli
from rehearsal.stages import Rehearsal
from stacks.manifests.pods import HEALTH_LABEL
from tests.rehearsal.test_cluster_command import deployed  # noqa: F401 - a fixture
from training.errors import ConfigError, SubstrateError

pytestmark = pytest.mark.emulator


def drill(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(
        cli, ["drill", "--on-cluster", "--environment", "dev", *arguments], input=answer
    )


@pytest.fixture(scope="module")
def at(deployed: Rehearsal) -> Rehearsal:  # noqa: F811
    """With a Ray pod on each of HyperPod's nodes."""
    core = CoreV1Api(deployed.api())
    for instance, role in zip(instances(deployed), ("worker", "head"), strict=False):
        core.create_node({"metadata": {"name": f"hyperpod-{instance}"}})
        labels = {"ray.io/cluster": "skypod", "ray.io/node-type": role}
        pod = {
            "metadata": {"name": f"skypod-{role}", "labels": labels},
            "spec": {
                "nodeName": f"hyperpod-{instance}",
                "containers": [{"name": "ray", "image": "train", "command": ["true"]}],
            },
        }
        core.create_namespaced_pod(deployed.deployed.namespace, pod)
        status = {"status": {"phase": "Running"}}
        core.patch_namespaced_pod_status(f"skypod-{role}", deployed.deployed.namespace, status)
    return deployed


def instances(r: Rehearsal) -> list[str]:
    nodes = r.session.client("sagemaker").list_cluster_nodes(ClusterName=r.deployed.hyperpod_cluster_name)
    return [node["InstanceId"] for node in nodes["ClusterNodeSummaries"]]


def test_by_default_it_says_what_it_would_do_and_does_nothing(at: Rehearsal):
    before = instances(at)
    result = drill("--action", "replace")
    assert f"--node-ids {before[0]}" in result.output
    assert "batch-replace-cluster-nodes" in result.output
    assert "Nothing was done" in result.output
    assert instances(at) == before


def test_a_label_is_put_on_the_node_of_a_worker(at: Rehearsal):
    result = drill("--action", "reboot", "--via", "label", "--perform", "--yes")
    assert result.exit_code == 0, result.output
    node = CoreV1Api(at.api()).read_node(f"hyperpod-{instances(at)[0]}")
    assert node.metadata.labels[HEALTH_LABEL] == "UnschedulablePendingReboot"


def test_a_no_leaves_the_node_alone_and_a_yes_replaces_it(at: Rehearsal):
    before = instances(at)
    assert drill("--action", "replace", "--perform", answer="n\n").exit_code == 1
    assert instances(at) == before
    result = drill("--action", "replace", "--perform", "--json", answer="y\n")
    assert json.loads(result.stdout.splitlines()[0])["node"] == f"hyperpod-{before[0]}"
    assert instances(at)[0] != before[0]
    assert instances(at)[1:] == before[1:]
    again = drill("--action", "reboot", "--perform", "--yes")
    assert isinstance(again.exception, SubstrateError)
    assert "InstanceIdNotFound" in again.exception.problem


def test_the_heads_node_is_rebooted_but_not_replaced(at: Rehearsal):
    assert "batch-reboot-cluster-nodes" in drill("--target", "head").output
    refused = drill("--target", "head", "--action", "replace")
    assert isinstance(refused.exception, ConfigError)
    assert "does not replace CPU nodes" in refused.exception.problem


def test_a_node_without_a_worker_is_refused_by_name(at: Rehearsal):
    refused = drill("--node", "elsewhere")
    assert "no worker of RayCluster" in refused.exception.problem
    assert "hyperpod-i-" in refused.exception.remedy


def test_a_pod_is_killed(at: Rehearsal):
    assert drill("--action", "kill-pod", "--perform", "--yes").exit_code == 0
    pods = CoreV1Api(at.api()).list_namespaced_pod(at.deployed.namespace).items
    assert [pod.metadata.name for pod in pods if pod.metadata.name.startswith("skypod-")] == ["skypod-head"]
