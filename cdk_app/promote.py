"""`skypod promote`, `rollback` and `adapters`: which adapter answers the public name, and since when."""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cdk_app import options, settings
from training.errors import ConfigError

_OPTIONS = (
    click.option(
        "--state",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(".rehearsal/shared/serving"),
        envvar="SKYPOD_SERVING",
        show_default=True,
        help="Folder of aliases, records and adapters; engine and gateway see it under the same path.",
    ),
    options.environment,
    click.option(
        "--server",
        envvar="SKYPOD_SERVER",
        metavar="URL",
        help="A vLLM that loads adapters while it runs; else the environment's RayService.",
    ),
    click.option(
        "--endpoint",
        is_flag=True,
        envvar="SKYPOD_ENDPOINT",
        help="The environment's SageMaker endpoint, instead of its RayService.",
    ),
    click.option("--server-key", envvar="SKYPOD_SERVER_KEY", help="Its API key."),
    click.option("--model-id", default="maze", show_default=True, help="The engine's name for the base."),
    click.option(
        "--gateway",
        envvar="SKYPOD_GATEWAY",
        metavar="URL",
        help="The gateway's control port; without it live and canary are compared by questions of ours.",
    ),
    click.option("--gateway-key", envvar="SKYPOD_GATEWAY_KEY", help="A key that may control it."),
)


@dataclass(frozen=True)
class Where:
    """The options that say where adapters are served."""

    state: Path
    environment: str
    server: str | None
    server_key: str | None
    endpoint: bool
    model_id: str
    gateway: str | None
    gateway_key: str | None


def _where(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options of Where, as one argument."""

    @wraps(command)
    def call(**given: Any) -> Any:
        names = Where.__dataclass_fields__
        where = Where(**{name: given.pop(name) for name in names})
        return command(where, **given)

    for option in reversed(_OPTIONS):
        call = option(call)
    return call


@click.command()
@click.argument("run_or_adapter")
@click.option(
    "--split", default="dev", show_default=True, help="Held-out tasks: dev, or the FILE of a split."
)
@click.option("--share", default=0.1, show_default=True, help="Of conversations that go to the canary.")
@click.option("--requests", default=50, show_default=True, help="Answers of the canary that are judged.")
@click.option(
    "--period", type=options.Seconds(), default=600.0, show_default=True, help="Seconds that they may take."
)
@click.option("--max-rank", default=64, show_default=True, help="The server's max_lora_rank.")
@options.runs
@options.shared
@_where
def promote(
    where: Where,
    run_or_adapter: str,
    split: str,
    share: float,
    requests: int,
    period: float,
    max_rank: int,
    runs: Path,
    shared: Path,
) -> None:
    """Bring the adapter of a run, or one that was promoted before, to all traffic.

    It is validated, registered, loaded under a name of its own, probed, played on held-out tasks, given a
    share of the traffic, and judged. Whatever speaks against it takes it back; what was live serves on. One
    that was cut off goes on with the same command.

    Exit status: 0 live, 1 not promoted, 2 wrong input, 3 something does not answer: start it again, 5 a
    rollback came first.

    \b
    Examples:
      skypod promote runs/maze-rehearsal-0 --server http://127.0.0.1:8000
      skypod promote maze-6c576434edc8 --share 0.05 --requests 500
    """
    from cdk_app import promotable, site
    from serving.adapter import Limits
    from serving.rollout.promote import promote as bring
    from serving.rollout.rules import Rules
    from training import lineage
    from training.recipe import Recipe

    run = promotable.find(run_or_adapter, runs)
    recipe = lineage.read_recipe(run)
    rules = Rules(share=share, requests=requests, period_s=period)
    one = promotable.candidate(
        run, shared / recipe.policy.base_model, where.state / "adapters", split, Limits(max_rank=max_rank)
    )

    def recipe_of(adapter: str) -> Recipe:
        return recipe if adapter == one.name else site.recipe_of(where.state, adapter)

    record = bring(site.open_site(where, rules, one.questions, recipe_of), one)
    click.echo(f"{one.name} is live; {record.before.live or 'the base'} answered before")


@click.command()
@click.option("--to", metavar="ADAPTER", help='What shall answer: one that was live before, or "base".')
@options.runs
@_where
def rollback(where: Where, to: str | None, runs: Path) -> None:
    """End the canary if there is one; else let the adapter answer that was live before.

    Takes seconds, also while a promotion runs: that one then ends.

    \b
    Examples:
      skypod rollback
      skypod rollback --to maze-6c576434edc8
    """
    from cdk_app import site
    from serving.rollout.rollback import roll_back
    from serving.rollout.rules import Rules

    record = roll_back(site.open_site(where, Rules(), None, partial(site.recipe_of, where.state)), to)
    click.echo(f"{record.known.live or 'the base'} answers; {record.adapter or 'the base'} was taken back")


@click.group(invoke_without_command=True)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".rehearsal/shared/serving"),
    envvar="SKYPOD_SERVING",
    show_default=True,
)
@click.option("--json", "as_json", is_flag=True, help="Aliases and records, as JSON.")
@click.pass_context
def adapters(ctx: click.Context, state: Path, as_json: bool) -> None:
    """Show the aliases and what every rollout came to."""
    from serving import aliases
    from serving.rollout import record
    from serving.rollout.site import ALIASES

    if ctx.invoked_subcommand:
        for name, option in (("state", "--state"), ("as_json", "--json")):
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(
                    f"{option} before {ctx.invoked_subcommand!r} says nothing: give it behind, if at all"
                )
        return
    current, all_records = aliases.read(state / ALIASES), record.read_all(state)
    if as_json:
        found = {"aliases": asdict(current), "rollouts": [asdict(one) for one in all_records]}
        click.echo(json.dumps(found, indent=2, sort_keys=True))
        return
    click.echo(f"live      {current.live or 'none: the base'}")
    if current.canary:
        click.echo(f"canary    {current.canary} ({current.canary_share:.0%})")
    click.echo(f"previous  {current.previous or 'none'}")
    for one in all_records:
        why = f": {one.failing}" if one.failing else ""
        click.echo(
            f"{one.started}  {one.action}  {one.adapter or 'base'}  {one.outcome or 'not finished'}{why}"
        )


@adapters.command()
@options.environment
@click.confirmation_option(prompt="Remove every adapter of the environment from the model registry?")
def forget(environment: str) -> None:
    """Remove an environment's adapters from the model registry, which no stack does.

    Works after `cdk destroy`, too. Adapters and run manifests in S3 are the bucket's business.

    \b
    Example:
      skypod adapters forget --environment dev
    """
    import boto3

    from cdk_app import names
    from serving import registry

    chosen = settings.load(environment)
    session = boto3.Session(region_name=chosen.region)
    account = chosen.account or session.client("sts").get_caller_identity()["Account"]
    groups = registry.forget(session.client("sagemaker"), names.of(chosen, account).prefix)
    click.echo(f"removed {', '.join(groups)}" if groups else "nothing was registered")


@adapters.command()
@click.option(
    "--every",
    type=options.Seconds(least=1),
    default=300.0,
    show_default=True,
    help="Seconds between two probes.",
)
@click.option("--once", is_flag=True, help="Probe once.")
@_where
def watch(where: Where, every: float, once: bool) -> None:
    """Probe the live adapter on a timer; when it no longer answers as it was trained, roll back.

    An engine that was started again gets its adapters back. Exit status: 1 after a rollback.
    """
    from cdk_app import promotable, site
    from serving.rollout import record
    from serving.rollout.candidate import Questions
    from serving.rollout.rules import Rules
    from serving.rollout.watch import watch as keep_watching
    from training import lineage

    def questions(adapter: str) -> Questions:
        last = record.newest(where.state, adapter)
        if last is None:
            raise ConfigError(f"no rollout of {adapter} is on record", "promote it with `skypod promote`")
        run = Path(last.run)
        return promotable.questions(run, lineage.read_recipe(run), "dev")

    stop = threading.Event()
    if once:
        stop.set()
    opened = site.open_site(where, Rules(), None, partial(site.recipe_of, where.state))
    if keep_watching(opened, questions, every, stop):
        click.get_current_context().exit(1)
