"""`skypod cluster`: the Ray cluster of an environment, made by the calling user, its image pinned by digest.

Whoever creates a Ray cluster owns its dashboard and its links, so it is no part of the stacks. The same
commands serve AWS and a rehearsal: only the AWS endpoint in the environment differs.
"""

import json
import time
from pathlib import Path
from typing import Any

import boto3
import click
from kubernetes.client import ApiClient

from cdk_app import cluster, images, kube, options, outputs, settings
from stacks.environment import Environment
from stacks.manifests import raycluster
from stacks.outputs import Outputs
from training import recipe as recipes
from training.recipe import Topology

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
NAME = "skypod"

_cluster = click.option("--cluster", "name", default=NAME, show_default=True, help="The RayCluster.")
_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")


def manifest(
    session: boto3.Session,
    environment: Environment,
    deployed: Outputs,
    *,
    name: str = NAME,
    topology: Topology | None = None,
) -> dict[str, Any]:
    """The RayCluster of the deployed train image, by digest; see `raycluster.build`.

    Raises SubstrateError when the image of the deployed sources was not built.
    """
    image = images.require(session, deployed, "train")
    return raycluster.build(environment, deployed, image=image, name=name, topology=topology)


@click.group("cluster")
def group() -> None:
    """Create, list and delete Ray clusters, as yourself."""


@group.command()
@options.environment
@_cluster
@click.option("--recipe", help="Make the topology of this recipe; without it, every GPU node's worth.")
@click.option("--timeout-s", type=click.IntRange(1, 86_400), default=2_400, show_default=True)
@_as_json
def up(environment: str, name: str, recipe: str | None, timeout_s: int, as_json: bool) -> None:
    """Create or update the RayCluster and wait until every node of it is ready.

    The first start on a node pulls an image of 15 GB. When time runs out, the error has the pods' own words,
    and the cluster stays: run the command again to go on waiting, or `skypod cluster down`.

    \b
    Examples:
      skypod cluster up
      skypod cluster up --environment dev --recipe maze-6gpu --json
    """
    began = time.monotonic()

    def tell(event: str, **more: Any) -> None:
        seconds = round(time.monotonic() - began, 1)
        if as_json:
            click.echo(json.dumps({"event": event, "cluster": name, "seconds": seconds, **more}))
        else:
            click.echo(f"{seconds:6.0f} s  {more.get('message') or event}")

    chosen, session, deployed, api = _reach(environment)
    topology = recipes.load(recipes.find(recipe, RECIPES)).topology if recipe else None
    wanted = manifest(session, chosen, deployed, name=name, topology=topology)
    image = _image(wanted)
    tell("applied", message=f"RayCluster {deployed.namespace}/{name} of {image}", image=image)
    cluster.up(api, wanted, timeout_s, lambda line: tell("progress", message=line))
    tell("ready", message="ready", image=image)


@group.command()
@options.environment
@_as_json
@click.pass_context
def status(ctx: click.Context, environment: str, as_json: bool) -> None:
    """List the RayClusters of the environment, and whether they run the image of the deployed sources.

    Exit status: 0 every cluster is ready, 1 one is not, or there is none.
    """
    _, session, deployed, api = _reach(environment)
    image = images.find(session, deployed, "train")
    found = [_row(each, image) for each in cluster.listing(api, deployed.namespace)]
    for row in found:
        if as_json:
            click.echo(json.dumps(row))
        else:
            sources = "the deployed sources" if row["current"] else "other sources than the deployed ones"
            click.echo(f"{row['cluster']:20s} {row['state']:10s} {row['nodes']}; image of {sources}")
    if not found and not as_json:
        click.echo("there is no RayCluster; create one with `skypod cluster up`")
    ctx.exit(0 if found and all(row["state"] == "ready" for row in found) else 1)


@group.command()
@options.environment
@_cluster
@click.option("--timeout-s", type=click.IntRange(1, 86_400), default=600, show_default=True)
@_as_json
def down(environment: str, name: str, timeout_s: int, as_json: bool) -> None:
    """Delete the RayCluster with whatever runs on it, and wait until its pods are gone.

    Runs keep their checkpoints, and the nodes stay and cost: `cdk destroy` gives those back.
    """
    _, _, deployed, api = _reach(environment)

    def tell(line: str, event: str = "progress") -> None:
        click.echo(json.dumps({"event": event, "cluster": name, "message": line}) if as_json else line)

    cluster.down(api, deployed.namespace, name, timeout_s, tell)
    tell(f"RayCluster {deployed.namespace}/{name} is gone", "gone")


def _reach(environment_name: str) -> tuple[Environment, boto3.Session, Outputs, ApiClient]:
    environment = settings.load(environment_name)
    session = boto3.Session(region_name=environment.region)
    deployed = outputs.read(session, environment)
    return environment, session, deployed, kube.connect(session, deployed.eks_cluster_name)


def _row(found: dict[str, Any], image: str | None) -> dict[str, Any]:
    status = found.get("status") or {}
    return {
        "cluster": found["metadata"]["name"],
        "state": status.get("state") or "pending",
        "nodes": cluster.nodes(status),
        "image": _image(found),
        "current": _image(found) == image,
    }


def _image(manifest: dict[str, Any]) -> str:
    return manifest["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"]
