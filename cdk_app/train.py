"""`skypod train`: submit runs to the Ray cluster of a deployed environment, watch, resume and stop them.

The same commands serve AWS and a rehearsal: only the AWS endpoint in the environment differs
(`. .rehearsal/env.sh` points this shell at the rehearsal that is running).
"""

import json
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import click
from kubernetes.client import ApiClient

from cdk_app import cluster, images, kube, options, outputs, settings, supervised
from cdk_app.doctor import cost
from stacks.environment import Environment
from stacks.manifests import raycluster, supervisor
from stacks.outputs import Outputs
from training import jobs
from training import recipe as recipes
from training.errors import ConfigError, SubstrateError
from training.jobs import Endpoint
from training.supervisor import decisions

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
NEXT_ATTEMPT_S = 600.0
"""How long a follower of jobs waits for another attempt after one that failed."""

_cluster = click.option("--cluster", "name", default="skypod", show_default=True, help="The RayCluster.")
_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
_price = click.option(
    "--usd-per-hour",
    type=float,
    default=None,
    help="For recovery.max_usd; by default from list prices.",
)
_entrypoint = click.option(
    "--entrypoint",
    default="python -m training.run",
    envvar="SKYPOD_ENTRYPOINT",
    show_default=True,
    help="The driver's command; a rehearsal has one of its own.",
)


@dataclass(frozen=True)
class Deployed:
    """An environment as this user may reach it."""

    environment: Environment
    session: boto3.Session
    outputs: Outputs
    api: ApiClient

    @classmethod
    def reach(cls, environment_name: str) -> "Deployed":
        environment = settings.load(environment_name)
        session = boto3.Session(region_name=environment.region)
        deployed = outputs.read(session, environment)
        return cls(environment, session, deployed, kube.connect(session, deployed.eks_cluster_name))

    @property
    def namespace(self) -> str:
        return self.outputs.namespace

    def ray(self, name: str) -> Endpoint:
        """The job API of the environment's RayCluster."""
        return cluster.dashboard(self.api, self.namespace, name)


@click.group()
def train() -> None:
    """Submit, watch, resume and stop training runs."""


@train.command()
@click.argument("recipe")
@click.option("--run", default=None, help="Run id; by default the recipe's name and the time.")
@options.environment
@_cluster
@_price
@_entrypoint
@_as_json
def submit(
    recipe: str,
    run: str | None,
    environment: str,
    name: str,
    usd_per_hour: float | None,
    entrypoint: str,
    as_json: bool,
) -> None:
    """Have RECIPE (a name or a TOML file) run under a supervisor, which outlives this shell.

    \b
    Example:
      skypod train submit maze-6gpu --run maze-a
      skypod train follow maze-a
    """
    file = recipes.find(recipe, RECIPES)
    chosen = recipes.load(file)
    run = run_name(run or f"{chosen.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    at = Deployed.reach(environment)
    found = supervised.find(at.api, at.namespace, run)
    if found:
        raise SubstrateError(
            f"run {run!r} was submitted already; its supervisor {found.supervisor} is {found.state}",
            f"follow it: `skypod train follow {run}`; go on with it: `skypod train resume {run}`; or choose "
            "another --run",
        )
    _apply(at, run, file.read_text(), name, usd_per_hour, entrypoint)
    _tell_submitted(run, as_json)


@train.command()
@click.argument("run")
@click.option(
    "--recipe", default=None, help="Go on under this one; see docs/how-to/recovery.md for what may change."
)
@options.environment
@_cluster
@_price
@_entrypoint
@_as_json
def resume(
    run: str,
    recipe: str | None,
    environment: str,
    name: str,
    usd_per_hour: float | None,
    entrypoint: str,
    as_json: bool,
) -> None:
    """Go on with RUN from its newest checkpoint, after it was given up or stopped.

    \b
    Examples:
      skypod train resume maze-a
      skypod train resume maze-a --recipe my-recipe.toml
    """
    given = recipes.find(recipe, RECIPES) if recipe else None
    if given:
        recipes.load(given)
    at = Deployed.reach(environment)
    found = supervised.find(at.api, at.namespace, run_name(run))
    if found and found.state == "active":
        raise SubstrateError(
            f"run {run!r} is supervised already, by {found.supervisor}",
            f"follow it: `skypod train follow {run}`; or stop it first: `skypod train stop {run}`",
        )
    text = given.read_text() if given else supervised.recipe(at.api, at.namespace, run)
    if text is None:
        raise ConfigError(
            f"the recipe of run {run!r} is not in the cluster any more", "name it with --recipe FILE"
        )
    supervised.delete(at.api, at.namespace, run)
    request = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    _apply(at, run, text, name, usd_per_hour, entrypoint, request)
    _tell_submitted(run, as_json)


@train.command()
@click.argument("run")
@options.environment
@_cluster
@_as_json
@click.pass_context
def follow(ctx: click.Context, run: str, environment: str, name: str, as_json: bool) -> None:
    """Follow RUN from its start, over all its attempts; Ctrl-C stops following, not the run."""
    at = Deployed.reach(environment)

    def show(event: dict[str, Any]) -> None:
        click.echo(json.dumps(event) if as_json else describe(event))

    if supervised.find(at.api, at.namespace, run):
        ended = supervised.follow(at.api, at.namespace, run, show)
        click.echo(f"{run}: {ended.state} {ended.why}".rstrip(), err=as_json)
        ctx.exit(0 if ended.state == "finished" else 1)
    ctx.exit(0 if follow_jobs(lambda: at.ray(name), run, show) else 1)


@train.command()
@options.environment
@_cluster
@_as_json
def status(environment: str, name: str, as_json: bool) -> None:
    """List the supervised runs, then the jobs of the cluster, newest last."""
    at = Deployed.reach(environment)
    for each in supervised.listing(at.api, at.namespace):
        line = f"{each.supervisor:40s} {each.state:10s} {each.why}"
        click.echo(json.dumps(asdict(each)) if as_json else line.rstrip())
    for job in jobs.listing(at.ray(name)):
        line = f"{job.job:40s} {job.status:10s} {job.message}"
        click.echo(json.dumps(asdict(job)) if as_json else line.rstrip())


@train.command()
@click.argument("run")
@options.environment
@_cluster
def stop(run: str, environment: str, name: str) -> None:
    """End RUN's supervisor and job; its checkpoints stay, and `skypod train resume` goes on from them."""
    at = Deployed.reach(environment)
    found = supervised.find(at.api, at.namespace, run)
    # First the one that would start another job.
    supervised.delete(at.api, at.namespace, run)
    ray = at.ray(name)
    live = [job.job for job in jobs.listing(ray) if job.run == run and not job.ended]
    for job in live:
        jobs.stop(ray, job)
    if not found and not live:
        raise SubstrateError(f"run {run!r} is not running here", "see `skypod train status`")
    click.echo(f"{run} is stopped")


def follow_jobs(ray: Callable[[], Endpoint], run: str, show: Callable[[dict[str, Any]], None]) -> bool:
    """Follow the jobs of a run without a Job in Kubernetes, one attempt after another; whether the last one
    succeeded."""
    job = jobs.newest(ray(), run)
    while True:
        try:
            outcome = jobs.follow(ray(), job, show)
            click.echo(f"{job}: {outcome.status}", err=True)
            if outcome.succeeded:
                return True
        except SubstrateError as error:
            click.echo(f"{job}: {error.problem}", err=True)
        following = _next_job(ray, run, job)
        if following is None:
            return False
        job = following


def _next_job(ray: Callable[[], Endpoint], run: str, after: str) -> str | None:
    click.echo(f"waiting for another attempt for {NEXT_ATTEMPT_S / 60:.0f} minutes", err=True)
    end = time.monotonic() + NEXT_ATTEMPT_S
    while time.monotonic() < end:
        time.sleep(2)
        try:
            if (found := jobs.newest(ray(), run)) != after:
                return found
        except SubstrateError:
            continue
    return None


def run_name(name: str) -> str:
    """A run id that names a Kubernetes Job, too. Raises ConfigError when it is none."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,55}[a-z0-9])?", name):
        raise ConfigError(
            f"run id {name!r} cannot name a Kubernetes Job",
            "use at most 57 small letters, digits and hyphens, with none of these at an end",
        )
    return name


def _apply(
    at: Deployed, run: str, recipe: str, name: str, price: float | None, entrypoint: str, request: str = ""
) -> None:
    decisions.require_price(price)
    chosen = recipes.parse(recipe, f"the recipe of run {run!r}")
    raycluster.require_room(at.environment, chosen.topology)
    at.ray(name)  # says what is missing before anything is made
    known = cost.expected(at.environment)
    if price is None and not known.without_price:
        price = known.hour
    objects = supervisor.build(
        at.environment,
        at.outputs,
        image=images.require(at.session, at.outputs, "train"),
        run=run,
        recipe=recipe,
        cluster=name,
        entrypoint=entrypoint,
        resume=request,
        usd_per_hour=price,
    )
    cluster.apply(at.api, objects)


def _tell_submitted(run: str, as_json: bool) -> None:
    told = {"run": run, "supervisor": supervisor.job_name(run)}
    click.echo(json.dumps(told) if as_json else f"{run} is submitted; follow it: skypod train follow {run}")


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
        case "phase":
            return f"step {event['step']}: {event['name']}"
        case "resumed":
            return f"goes on after step {event['step']}"
        case "passed_over":
            return f"passed over: {event['message']}"
        case "checkpoint":
            return f"checkpoint of step {event['step']}: {event.get('folder', '')}".rstrip(": ")
        case "supervisor":
            attempt = f" (attempt {event['attempt']})" if event.get("attempt") else ""
            return f"supervisor{attempt}: {event['what']}: {event['message']}"
        case _:
            told = [str(event[k]) for k in ("message", "adapter", "remedy") if event.get(k)]
            return " ".join([event["event"], *told])
