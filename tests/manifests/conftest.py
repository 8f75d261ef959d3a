"""Strict validators: KubeRay's own CRDs for Ray kinds, Kubernetes' own schemas for the others."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from cdk_app import settings
from rehearsal.kube.schemas import crd_validator, load_crds
from stacks.environment import Environment
from stacks.outputs import Outputs

ROOT = Path(__file__).parents[2]
Faults = Callable[[dict[str, Any]], list[str]]


def _crds_folder() -> Path:
    shared = os.environ.get("SKYPOD_SHARED_DIR")
    return (Path(shared) if shared else ROOT.parent / "shared") / "crds"


@pytest.fixture(scope="session")
def ray_faults(pytestconfig) -> Faults:
    """What KubeRay's API server would refuse in a Ray object, one line per fault."""
    folder = _crds_folder()
    if not folder.is_dir():
        reason = f"KubeRay's CRDs are not at {folder}; set SKYPOD_SHARED_DIR to the folder that holds crds/"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    validators = {
        (f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]): crd_validator(
            version["schema"]["openAPIV3Schema"]
        )
        for crd in load_crds(folder, pytestconfig.cache.mkdir("skypod-crds"))
        if crd["spec"]["group"] == "ray.io"
        for version in crd["spec"]["versions"]
    }

    def faults(manifest: dict[str, Any]) -> list[str]:
        validator = validators[manifest["apiVersion"], manifest["kind"]]
        return [
            f"{'/'.join(map(str, error.instance_path))}: {error.message}"
            for error in validator.iter_errors(manifest)
        ]

    return faults


@pytest.fixture(scope="session")
def core_faults(environment: Environment) -> Faults:
    """What the environment's Kubernetes version would refuse in a built-in object."""

    def faults(manifest: dict[str, Any]) -> list[str]:
        try:
            kubernetes_validate.validate(manifest, environment.eks.version, strict=True)
        except kubernetes_validate.ValidationError as error:
            return [str(error)]
        return []

    return faults


@pytest.fixture(scope="session")
def environment() -> Environment:
    return settings.load("paper")


@pytest.fixture(scope="session")
def outputs() -> Outputs:
    return Outputs(
        region="us-west-2",
        account="123456789012",
        namespace="skypod",
        vpc_id="vpc-1",
        artifacts_bucket="artifacts",
        lifecycle_bucket="sagemaker-lifecycle",
        file_system_id="fs-0123456789abcdef0",
        file_system_dns="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
        file_system_mount_name="abcdefgh",
        train_repository_uri="123456789012.dkr.ecr.us-west-2.amazonaws.com/skypod-paper/train",
        serve_repository_uri="123456789012.dkr.ecr.us-west-2.amazonaws.com/skypod-paper/serve",
        train_build_project="skypod-paper-train-image",
        serve_build_project="skypod-paper-serve-image",
        train_image_tag="0123456789abcdef-0123456789abcdef",
        serve_image_tag="0123456789abcdef",
        eks_cluster_name="skypod-paper",
        eks_cluster_arn="arn:aws:eks:us-west-2:123456789012:cluster/skypod-paper",
        hyperpod_cluster_name="skypod-paper",
        hyperpod_cluster_arn="arn:aws:sagemaker:us-west-2:123456789012:cluster/abc",
        chart_build_project="skypod-paper-charts",
        training_service_account="skypod-training",
        admin_role_arn="arn:aws:iam::123456789012:role/skypod-paper-admin",
        researcher_role_arn="arn:aws:iam::123456789012:role/skypod-paper-researcher",
        prometheus_workspace_id="ws-1",
        prometheus_endpoint="https://aps-workspaces.us-west-2.amazonaws.com/workspaces/ws-1",
        idle_alarm_name="skypod-paper-idle-gpu-nodes",
        alerts_topic_arn="arn:aws:sns:us-west-2:123456789012:skypod-paper-alerts",
        budget_name="skypod-paper-monthly",
        serving_service_account="skypod-serving",
        adapters_uri="s3://artifacts/adapters",
    )
