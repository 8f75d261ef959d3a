"""Opens the place where adapters are served: engine, gateway and registry of an environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import click
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from cdk_app import cluster, images, kube, names, outputs, settings
from serving import archive, manifest
from serving.registry import Registry
from serving.rollout import record
from serving.rollout.candidate import Questions
from serving.rollout.destination import Destination, RayService, Vllm
from serving.rollout.rules import Rules
from serving.rollout.sagemaker import SageMakerEndpoint
from serving.rollout.site import Site
from serving.rollout.stack_slots import StackSlots
from serving.rollout.traffic import GatewayTraffic, Questioning, Traffic
from stacks.environment import Environment
from stacks.manifests import rayservice
from stacks.names import ADAPTER_SLOT, INFERENCE_COMPONENT
from stacks.outputs import Outputs
from training import lineage
from training.errors import ConfigError
from training.recipe import Recipe

if TYPE_CHECKING:
    from cdk_app.promote import Where

SERVED_S = 1800.0


def open_site(where: Where, rules: Rules, questions: Questions | None, recipe: Recipe | None) -> Site:
    """The site that a command's options name. `questions` compare live and canary where there is no gateway;
    `recipe` says how a RayService serves its base."""
    environment = settings.load(where.environment)
    session = boto3.Session(region_name=environment.region)
    deployed = outputs.read(session, environment)

    def tell(text: str) -> None:
        click.echo(text, err=True)

    destination: Destination
    image = None
    if where.endpoint:
        destination, image = _endpoint(where, environment, session, deployed)
    elif where.server:
        destination = Vllm(where.server, where.model_id, where.server_key)
    else:
        destination = ray_service(
            session, environment, deployed, recipe, model_id=where.model_id, name=where.service, tell=tell
        )
    traffic = _traffic(where, destination, questions)
    return of(session, environment, deployed, where.state, destination, traffic, rules, tell, image)


def of(
    session: boto3.Session,
    environment: Environment,
    deployed: Outputs,
    state: Path,
    destination: Destination,
    traffic: Traffic,
    rules: Rules,
    tell: Callable[[str], None],
    image: str | None = None,
) -> Site:
    """The site of a destination whose adapters are registered, and kept in S3, by an environment.

    `image` serves there; None stands for the environment's own.
    """
    bucket, prefix = deployed.adapters_at
    registry = Registry(
        session.client("sagemaker"),
        session.client("s3"),
        bucket,
        image or f"{deployed.serve_repository_uri}:{deployed.serve_image_tag}",
        names.of(environment, deployed.account).prefix,
    )
    return Site(state, destination, traffic, registry, prefix, rules, tell)


def recipe_of(state: Path) -> Recipe | None:
    """The recipe of the run that was promoted last."""
    last = record.newest(state)
    return lineage.read_recipe(Path(last.run)) if last else None


def _traffic(where: Where, destination: Destination, questions: Questions | None) -> Traffic:
    if where.gateway:
        if not where.gateway_key:
            raise ConfigError("the gateway's control port asks for a key", "give it: --gateway-key")
        return GatewayTraffic(where.gateway, where.gateway_key)
    return Questioning(destination, questions)


def _endpoint(
    where: Where, environment: Environment, session: boto3.Session, deployed: Outputs
) -> tuple[SageMakerEndpoint, str]:
    """The environment's endpoint, and the image that serves there."""
    wanted = environment.serving.endpoint
    if wanted is None:
        raise ConfigError(
            f"environment {environment.name} has no SageMaker endpoint",
            "add [serving.endpoint] to its settings and deploy",
        )
    if where.server or where.gateway:
        raise ConfigError(
            f"--endpoint and {'--server' if where.server else '--gateway'} name different engines",
            "leave one out; the gateway does not stand before an endpoint",
        )
    if where.model_id != wanted.model_id:
        raise ConfigError(
            f"--model-id is {where.model_id!r}, and the endpoint's base is {wanted.model_id!r}",
            "give the name in serving.endpoint.model_id",
        )
    bucket, prefix = deployed.adapters_at
    slots = StackSlots(
        session.client("cloudformation"),
        names.of(environment, deployed.account).stack("inference"),
        ADAPTER_SLOT,
        INFERENCE_COMPONENT,
    )
    s3 = session.client("s3")
    destination = SageMakerEndpoint(
        session,
        deployed.inference_endpoint_name,
        where.model_id,
        slots,
        lambda folder: archive.upload(folder, s3, bucket, prefix),
    )
    return destination, wanted.image


def ray_service(
    session: boto3.Session,
    environment: Environment,
    deployed: Outputs,
    recipe: Recipe | None,
    *,
    model_id: str,
    name: str,
    tell: Callable[[str], None],
) -> RayService:
    """The environment's RayService of a name, which is made for the first adapter that it has to load."""
    api = kube.connect(session, deployed.eks_cluster_name)

    def serve(folder: Path) -> str:
        if recipe is None:
            raise ConfigError("nothing says which base to serve", "promote a run first")
        adapter = manifest.parse((folder / manifest.MANIFEST).read_bytes(), str(folder))
        wanted = rayservice.build(
            environment,
            deployed,
            image=images.require(session, deployed, "serve"),
            base_model_path=f"/shared/{recipe.policy.base_model}",
            model_id=model_id,
            adapters_uri=deployed.adapters_uri,
            adapter_name=adapter.name,
            adapter_digest=adapter.digest,
            max_lora_rank=recipe.policy.lora_rank,
            max_model_len=recipe.rollout.max_model_len_tokens,
            name=name,
        )
        return cluster.serve(api, wanted, SERVED_S, tell).url

    return RayService(model_id, _address(api, deployed.namespace, name), serve)


def _address(api: client.ApiClient, namespace: str, service: str) -> str:
    """Where the service answers; "" when it is not up yet."""
    try:
        found = client.CoreV1Api(api).read_namespaced_service(f"{service}-serve-svc", namespace)
    except ApiException as error:
        if error.status == 404:
            return ""
        raise
    return f"http://{found.spec.cluster_ip}:{found.spec.ports[0].port}"
