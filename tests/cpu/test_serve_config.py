"""What the RayService says of its replicas, read by Ray Serve's own classes."""

import pytest
import yaml

pytest.importorskip("ray.serve", reason="needs the training environment")

from ray.serve._private.config import DeploymentConfig

from cdk_app import settings
from stacks.manifests import rayservice


def deployment(**serving: int) -> DeploymentConfig:
    service = rayservice.build(
        settings.load("paper", {f"serving.{key}": value for key, value in serving.items()}),
        rayservice.Served(
            adapter="maze-6c576434edc8",
            base="base",
            model_id="maze",
            image=f"registry/serve@sha256:{'0' * 64}",
            max_lora_rank=32,
            max_model_len=8192,
        ),
        region="us-west-2",
        adapters_uri="s3://bucket/adapters",
    )
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    return DeploymentConfig(**application["args"]["llm_configs"][0]["deployment_config"])


def test_replicas_that_are_fixed():
    read = deployment(min_replicas=2, max_replicas=2)
    assert (read.num_replicas, read.autoscaling_config) == (2, None)
    assert read.graceful_shutdown_timeout_s == 300


def test_replicas_that_follow_the_load():
    scaling = deployment(min_replicas=1, max_replicas=3, requests_per_replica=24).autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (1, 3, 24)
