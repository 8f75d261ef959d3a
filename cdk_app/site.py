"""Opens the place where adapters are served: engine, gateway and registry of an environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import click
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from cdk_app import cluster, images, kube, names, outputs, settings
from serving import manifest
from serving.registry import Registry
from serving.rollout import record
from serving.rollout.candidate import Questions
from serving.rollout.destination import Destination, RayService, Vllm
from serving.rollout.rules import Rules
from serving.rollout.site import Site
from serving.rollout.traffic import GatewayTraffic, Questioning, Traffic
from stacks.environment import Environment
from stacks.manifests import rayservice
from stacks.outputs import Outputs
from training import lineage
from training.errors import ConfigError
from training.recipe import Recipe

if TYPE_CHECKING:
    from cdk_app.promote import Where

SERVED_S = 1800.0


def open_site(where: Where, rules: Rules, questions: Questions | None, recipe: Recipe | None) -> Site:
    """The site of an environment. `questions` compare live and canary where there is no gateway; `recipe`
    says how a RayService serves its base."""
    environment = settings.load(where.environment)
    session = boto3.Session(region_name=environment.region)
    deployed = outputs.read(session, environment)
    bucket, _, prefix = deployed.adapters_uri.removeprefix("s3://").partition("/")
    destination: Destination
    if where.server:
        destination = Vllm(where.server, where.model_id, where.server_key)
    else:
        destination = _ray_service(where, environment, session, deployed, recipe)
    return Site(
        where.state,
        destination,
        _traffic(where, destination, questions),
        Registry(
            session.client("sagemaker"),
            session.client("s3"),
            bucket,
            f"{deployed.serve_repository_uri}:{deployed.serve_image_tag}",
            names.of(environment, deployed.account).prefix,
        ),
        prefix,
        rules,
        lambda text: click.echo(text, err=True),
    )


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


def _ray_service(
    where: Where, environment: Environment, session: boto3.Session, deployed: Outputs, recipe: Recipe | None
) -> RayService:
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
            model_id=where.model_id,
            adapters_uri=deployed.adapters_uri,
            adapter_name=adapter.name,
            adapter_digest=adapter.digest,
            max_lora_rank=recipe.policy.lora_rank,
            max_model_len=recipe.rollout.max_model_len_tokens,
            name=where.service,
        )
        return cluster.serve(api, wanted, SERVED_S, lambda text: click.echo(text, err=True)).url

    return RayService(where.model_id, _address(api, deployed.namespace, where.service), serve)


def _address(api: client.ApiClient, namespace: str, service: str) -> str:
    """Where the service answers; "" when it is not up yet."""
    try:
        found = client.CoreV1Api(api).read_namespaced_service(f"{service}-serve-svc", namespace)
    except ApiException as error:
        if error.status == 404:
            return ""
        raise
    return f"http://{found.spec.cluster_ip}:{found.spec.ports[0].port}"
