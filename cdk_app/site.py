"""Opens the place where adapters are served: engine, gateway and registry of an environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import click
from botocore.exceptions import BotoCoreError, ClientError
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from cdk_app import cluster, images, kube, names, outputs, settings
from serving import archive, manifest
from serving.registry import Registry
from serving.rollout import record
from serving.rollout.candidate import Questions
from serving.rollout.destination import Destination, RayService, Vllm
from serving.rollout.rules import Rules
from serving.rollout.sagemaker import SageMakerEndpoint
from serving.rollout.site import Site
from serving.rollout.stack_parameters import RolledBackError, StackParameters
from serving.rollout.stack_slots import StackSlots
from serving.rollout.traffic import GatewayTraffic, Questioning, Traffic
from stacks.environment import Environment
from stacks.manifests import rayservice
from stacks.names import ADAPTER_SLOT, INFERENCE_COMPONENT, KUBE_OBJECTS
from stacks.outputs import Outputs
from training import lineage
from training.errors import ConfigError, SubstrateError
from training.recipe import Recipe

if TYPE_CHECKING:
    from cdk_app.promote import Where

SERVED_S = 1800.0
NOTHING_SERVED = {"Adapter": ""}


def open_site(
    where: Where, rules: Rules, questions: Questions | None, recipe: Callable[[str], Recipe]
) -> Site:
    """The site that a command's options name. `questions` compare live and canary where there is no gateway;
    `recipe` is the one that an adapter was trained by, and is asked when a RayService is to serve it."""
    environment = settings.load(where.environment)
    session = boto3.Session(region_name=environment.region)

    def tell(text: str) -> None:
        click.echo(text, err=True)

    destination: Destination
    registry: Registry | _Later
    if where.server and not where.endpoint:
        # An engine of its own needs nothing of AWS: a rollback there must not wait for it.
        destination = Vllm(where.server, where.model_id, where.server_key)
        registry = _Later(lambda: registry_of(session, environment, outputs.read(session, environment)))
    else:
        deployed, image = outputs.read(session, environment), None
        if where.endpoint:
            destination, image = _endpoint(where, environment, session, deployed)
        else:
            destination = ray_service(
                session, environment, deployed, recipe, model_id=where.model_id, tell=tell
            )
        registry = registry_of(session, environment, deployed, image)
    traffic = _traffic(where, destination, questions)
    return Site(where.state, destination, traffic, registry, rules, tell)


class _Later:
    """A registry that is opened by its first use. SubstrateError, also the next time, where it cannot be."""

    def __init__(self, open_registry: Callable[[], Registry]):
        self._open = cache(open_registry)

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._open(), name)
        except (BotoCoreError, ClientError) as error:
            raise SubstrateError(
                f"the registry cannot be reached: {error}", "see the credentials and the network"
            ) from error


def registry_of(
    session: boto3.Session, environment: Environment, deployed: Outputs, image: str | None = None
) -> Registry:
    """Where an environment registers its adapters; `image` serves them, None stands for its own."""
    bucket, prefix = deployed.adapters_at
    return Registry(
        session.client("sagemaker"),
        session.client("s3"),
        bucket,
        image or f"{deployed.serve_repository_uri}:{deployed.serve_image_tag}",
        names.of(environment, deployed.account).prefix,
        prefix,
    )


def recipe_of(state: Path, adapter: str) -> Recipe:
    """The recipe of the run that an adapter was promoted from."""
    last = record.newest(state, adapter)
    if last is None:
        raise ConfigError(f"nothing says which base {adapter} needs", "promote its run")
    return lineage.read_recipe(Path(last.run))


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
    slots = StackSlots(_parameters(session, environment, deployed, "inference"), ADAPTER_SLOT)
    s3 = session.client("s3")
    destination = SageMakerEndpoint(
        session,
        deployed.inference_endpoint_name,
        where.model_id,
        slots,
        lambda folder: archive.upload(folder, s3, bucket, prefix),
    )
    return destination, wanted.image


def _parameters(
    session: boto3.Session, environment: Environment, deployed: Outputs, part: str
) -> StackParameters:
    """What a stack serves, to be changed without anything else of it."""
    types = {"serving": KUBE_OBJECTS, "inference": INFERENCE_COMPONENT}
    stack = names.of(environment, deployed.account).stack(part)
    return StackParameters(session.client("cloudformation"), stack, types[part])


def ray_service(
    session: boto3.Session,
    environment: Environment,
    deployed: Outputs,
    recipe: Callable[[str], Recipe],
    *,
    model_id: str,
    tell: Callable[[str], None],
) -> RayService:
    """The environment's RayService, which its stack makes for the first adapter that it has to load."""
    connect = cache(lambda: kube.connect(session, deployed.eks_cluster_name))

    def address() -> str:
        with _answering():
            return cluster.service_url(connect(), deployed.namespace, rayservice.NAME)

    def serve(folder: Path) -> None:
        adapter = manifest.parse((folder / manifest.MANIFEST).read_bytes(), str(folder))
        by = recipe(adapter.name)
        wanted = rayservice.Served(
            adapter=adapter.name,
            base=by.policy.base_model,
            model_id=model_id,
            image=images.require(session, deployed, "serve"),
            max_lora_rank=adapter.rank,
            max_model_len=by.rollout.max_model_len_tokens,
        )
        tell(f"its stack is told to serve {adapter.name}")
        with _answering():
            start_serving(session, environment, deployed, connect(), wanted)
            cluster.served(connect(), deployed.namespace, rayservice.NAME, SERVED_S, tell)

    return RayService(model_id, address, serve)


@contextmanager
def _answering() -> Iterator[None]:
    """SubstrateError for all that AWS's and Kubernetes' clients raise."""
    try:
        yield
    except (BotoCoreError, ClientError, ApiException, HTTPError) as error:
        raise SubstrateError(
            f"the cluster of the RayService cannot be asked: {error}", "see the credentials and the network"
        ) from error


def start_serving(
    session: boto3.Session,
    environment: Environment,
    deployed: Outputs,
    api: client.ApiClient,
    wanted: rayservice.Served,
) -> None:
    """Have the stack apply the RayService, also when somebody deleted it beside the stack.

    It stays large enough for what it served of the same base. Raises ConfigError for another base than that
    of an adapter that is served, and for what Kubernetes refuses.
    """
    parameters = _parameters(session, environment, deployed, "serving")
    current, values = parameters.read(), wanted.parameters()
    for name in ("Base", "ModelId"):
        if current.get("Adapter") and current[name] != values[name]:
            raise ConfigError(
                f"{parameters.stack} serves {name} = {current[name]!r}, and {wanted.adapter} needs "
                f"{values[name]!r}",
                "use another environment; or, where nothing is live, end the service first by a deploy "
                "with an empty Adapter (docs/reference/stacks.md)",
            )
    bounds = {name: int(values[name]) for name in ("MaxLoraRank", "MaxModelLen")}
    if current.get("Base") == values["Base"]:
        bounds = {name: max(bound, int(float(current[name]))) for name, bound in bounds.items()}
    bounds["MaxLoraRank"] = next(rank for rank in rayservice.LORA_RANKS if rank >= bounds["MaxLoraRank"])
    values |= {name: str(bound) for name, bound in bounds.items()}
    try:
        if not cluster.service_exists(api, deployed.namespace, rayservice.NAME):
            parameters.change(current, NOTHING_SERVED)
            current |= NOTHING_SERVED
        parameters.change(current, values)
    except RolledBackError as error:
        raise ConfigError(error.problem, error.remedy) from error


def stop_serving(session: boto3.Session, environment: Environment, deployed: Outputs) -> None:
    """Have the stack remove the RayService, and wait until its pods are gone."""
    parameters = _parameters(session, environment, deployed, "serving")
    parameters.change(parameters.read(), NOTHING_SERVED)
