"""`skypod train`: watch and stop runs on the Ray cluster of a deployed environment.

The same commands serve AWS and a rehearsal: only the AWS endpoint in the environment differs
(`. .rehearsal/env.sh` points this shell at the rehearsal that is running).
"""

import json
from dataclasses import asdict
from typing import Any

import boto3
import click

from cdk_app import cluster, kube, outputs, settings
from training import jobs
from training.jobs import Endpoint

_environment = click.option("--environment", default=settings.DEFAULT, show_default=True)
_cluster = click.option("--cluster", "name", default="skypod", show_default=True, help="The RayCluster.")
_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")


def endpoint(environment_name: str, name: str) -> Endpoint:
    """The job API of the environment's RayCluster, as this user may reach it."""
    environment = settings.load(environment_name)
    session = boto3.Session(region_name=environment.region)
    deployed = outputs.read(session, environment)
    api = kube.connect(session, deployed.eks_cluster_name)
    return cluster.dashboard(api, deployed.namespace, name)


@click.group()
def train() -> None:
    """Watch and stop training runs."""


@train.command()
@click.argument("run")
@_environment
@_cluster
@_as_json
@click.pass_context
def follow(ctx: click.Context, run: str, environment: str, name: str, as_json: bool) -> None:
    """Follow RUN from its start until it ends; Ctrl-C stops following, not the run."""
    at = endpoint(environment, name)
    job = jobs.newest(at, run)

    def show(event: dict[str, Any]) -> None:
        click.echo(json.dumps(event) if as_json else describe(event))

    outcome = jobs.follow(at, job, show)
    click.echo(f"{job}: {outcome.status}", err=as_json)
    ctx.exit(0 if outcome.succeeded else 1)


@train.command()
@_environment
@_cluster
@_as_json
def status(environment: str, name: str, as_json: bool) -> None:
    """List the jobs of the cluster, newest last."""
    for job in jobs.listing(endpoint(environment, name)):
        click.echo(json.dumps(asdict(job)) if as_json else f"{job.job:40s} {job.status:10s} {job.message}")


@train.command()
@click.argument("run")
@_environment
@_cluster
def stop(run: str, environment: str, name: str) -> None:
    """End RUN's job; its checkpoints stay."""
    at = endpoint(environment, name)
    job = jobs.newest(at, run)
    jobs.stop(at, job)
    click.echo(f"{job} is stopped")


def describe(event: dict[str, Any]) -> str:
    """One line for a person."""
    match event["event"]:
        case "stage":
            return f"starting {event['name']}"
        case "evaluating":
            return f"{event['label']}: {event['finished']}/{event['total']} played, {event['solved']} solved"
        case "evaluation":
            interval = f"[{event['low']:.1%}, {event['high']:.1%}], ceiling {event['ceiling']:.1%}"
            return f"{event['label']}: {event['solved']}/{event['n']} = {event['solve_rate']:.1%} {interval}"
        case "step":
            gap = f"gap {event.get('logprob_gap_mean', float('nan')):.1e}"
            rate = f"train {event['train_solve_rate']:.1%}"
            return f"step {event['step']}/{event['steps']}: {rate}, {gap}, {event['step_seconds']:.1f} s"
        case "checkpoint":
            return f"checkpoint of step {event['step']}: {event['folder']}"
        case _:
            return " ".join([event["event"], *(str(event[k]) for k in ("message", "adapter") if k in event)])
