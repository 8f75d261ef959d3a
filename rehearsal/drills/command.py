"""`skypod drill`: faults on purpose, and what came of each."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from cdk_app import drill as on_cluster_drill
from cdk_app import images, settings
from rehearsal.command import RAY_DOWN, STAND, TEAR_DOWN
from rehearsal.drills import disk, network, plan, report
from rehearsal.drills.campaign import Campaign
from rehearsal.drills.faults import FAULTS
from rehearsal.drills.site import Site
from rehearsal.progress import Stage
from rehearsal.session import Order, Session, begun, run_name
from rehearsal.stages import CLUSTER, Rehearsal
from training.errors import ConfigError


@click.command()
@click.option("--recipe", "recipe_name", default="drill", show_default=True, help="Recipe by name or path.")
@click.option("--kills", type=click.IntRange(1, 1000), default=40, show_default=True, help="How many faults.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws the campaign.")
@click.option("--fault", "faults", multiple=True, help="Only this one; may be given again. See --list.")
@click.option("--list", "list_them", is_flag=True, help="Print what can be drilled and what is promised.")
@click.option("--name", default=None, help="Folder below runs/drills; by default one of its own.")
@click.option("--environment", "environment_name", default=settings.DEFAULT, show_default=True)
@click.option(
    "--crds",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="SKYPOD_CRDS_DIR",
    help="Folder with KubeRay's CRD files: Ray objects are then validated strictly.",
)
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Override a recipe key.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; progress goes to stderr.")
@click.option("--on-cluster", is_flag=True, help="Drill a deployed environment; by default only say how.")
@click.option("--action", type=click.Choice(on_cluster_drill.ACTIONS), default="reboot", show_default=True)
@click.option("--target", type=click.Choice(on_cluster_drill.TARGETS), default="worker", show_default=True)
@click.option("--via", "way", type=click.Choice(on_cluster_drill.WAYS), default="api", show_default=True)
@click.option("--node", default=None, help="The node to drill; by default that of the first worker.")
@click.option("--cluster", default=CLUSTER, show_default=True, help="The RayCluster.")
@click.option("--perform", is_flag=True, help="With --on-cluster: do it, after a question.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def drill(
    ctx: click.Context,
    recipe_name: str,
    kills: int,
    seed: int,
    faults: tuple[str, ...],
    list_them: bool,
    name: str | None,
    environment_name: str,
    crds: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
    on_cluster: bool,
    perform: bool,
    yes: bool,
    **chosen: str | None,
) -> None:
    """Kill, hang and damage runs on this machine, and compare them with one that was left alone.

    Exit status 1 when a promise was broken. Ctrl-C stops it; the same command goes on where it was. With
    --on-cluster, the nodes and pods of a deployed environment are drilled instead: --action, --target, --via
    and --node say how.

    \b
    Examples:
      skypod drill --kills 40 --seed 0
      skypod drill --fault head --kills 2
      skypod drill --on-cluster --action replace
    """
    if perform and not on_cluster:
        raise ConfigError("--perform is of --on-cluster", "give both, or leave it out to drill this machine")
    if on_cluster:
        _on_cluster(on_cluster_drill.order(environment_name, **chosen), perform, yes, as_json)
        return
    if list_them:
        for fault in FAULTS.values():
            click.echo(f"{fault.name:22s} {fault.does}; {', '.join(fault.phases)}")
        return
    console = Console(stderr=as_json)
    order = Order.read(recipe_name, environment_name, crds, assignments)
    with network.cuttable() as no_cut:
        needs = {"disk": disk.why_not(), "network": no_cut}
        possible, without = plan.possible(faults or tuple(FAULTS), needs)
        for one, why in without.items():
            console.print(f"not drilled: {one}: {why}", highlight=False)
        runs = plan.draw(order.recipe, kills, seed, possible)
        campaign = Campaign(_folder(order, runs, name), order.recipe, seed, runs, without)
        if campaign.left:
            with begun(order, campaign.name, console) as session:
                session.run(STAND)
                _perform(session, campaign)
                session.run([RAY_DOWN, TEAR_DOWN])
            session.require_clean()
    found = campaign.found
    (campaign.path.with_name("drill.md")).write_text(report.markdown(found))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        console.print(report.table(found))
        for line in ("", *report.lines(found), f"\nReport: {campaign.path}"):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
    ctx.exit(1 if found["summary"]["problems"] else 0)


def _on_cluster(order: on_cluster_drill.Order, perform: bool, yes: bool, as_json: bool) -> None:
    click.echo(on_cluster_drill.describe(order, as_json=as_json))
    if not perform:
        if not as_json:
            click.echo("\nNothing was done; --perform does it.")
        return
    if not yes:
        click.confirm(f"\nDo this to {order.node}?", abort=True, err=True)
    order.perform()
    click.echo("done; `skypod train follow` shows how the run recovers", err=True)


def _perform(session: Session, campaign: Campaign) -> None:
    console = session.shown.console

    def reference(r: Rehearsal, stage: Stage) -> None:
        stage.note = campaign.play_reference(_site(r), _show(stage, console))

    session.run([("Run without faults", reference)])
    for number in campaign.left:
        faults = len(campaign.plan[number])

        def struck(r: Rehearsal, stage: Stage, number: int = number) -> None:
            found = campaign.play(_site(r), number, _show(stage, console))
            kept = f"{len(found['problems'])} promises broken" if found["problems"] else "all promises kept"
            stage.note = f"{found['comparison']}; {kept}"

        session.run([(f"Run {number + 1} of {len(campaign.plan)} under {faults} faults", struck)])


def _site(r: Rehearsal) -> Site:
    image = images.require(r.session, r.deployed, "train")
    return Site(r.api(), r.environment, r.deployed, image, CLUSTER, r.folders.shared)


def _show(stage: Stage, console: Console):
    def show(event: dict) -> None:
        match event["event"]:
            case "strike":
                console.print(f"  {event['fault']} in {event['doing']}", highlight=False)
            case "supervisor":
                stage.update(f"attempt {event['attempt']}: {event['what']}: {event['message'][:80]}")
            case "step":
                stage.advance(event["step"], event["steps"], f"step {event['step']}")
            case "stage":
                stage.update(f"starting {event['name']}")

    return show


def _folder(order: Order, runs: Sequence[Sequence[plan.Strike]], name: str | None) -> Path:
    """Of a campaign of the same recipe and plan, the same."""
    content = json.dumps([order.recipe.model_dump(mode="json"), [[str(s) for s in run] for run in runs]])
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    return order.folders.runs / "drills" / run_name(name or f"drill-{digest}")
