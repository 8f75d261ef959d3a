"""`skypod rehearse`: the whole job on this machine, from `cdk deploy` to a served adapter and back."""

import signal
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from cdk_app import gate, settings
from rehearsal import stages, substrate
from rehearsal.session import Order, Session, begun, run_name
from rehearsal.stages import Rehearsal
from training import report
from training.errors import ConfigError
from training.files import write_json

RAY_DOWN = ("Take the Ray cluster down", stages.ray_down)
TEAR_DOWN = ("Destroy all stacks", stages.tear_down)
STAND = [
    ("Deploy all stacks to the emulated AWS", stages.deploy_stacks),
    ("Read back what was made", stages.read_back),
    ("Bring up the Ray cluster", stages.ray_up),
    ("Make the base policy", stages.base_policy),
]
"""What every run stands on."""
LEARN = [
    *STAND,
    ("Make mazes and run folder", stages.make_run),
    ("Evaluate, train with SkyRL, evaluate", stages.train),
    RAY_DOWN,
    ("Decide at the gate", stages.decide),
    ("Promote the adapter", stages.promote_adapter),
    ("Prove that the adapter is the trained one", stages.prove_effect),
    ("Play the test through HTTP", stages.play_served),
]


@click.command()
@click.option(
    "--recipe", "recipe_name", default="rehearsal", show_default=True, help="Recipe by name or path."
)
@click.option("--environment", "environment_name", default=settings.DEFAULT, show_default=True)
@click.option("--run", "run_id", default=None, help="Run id; its folder below runs/ must not exist.")
@click.option("--keep", is_flag=True, help="Leave everything up at the end, until Ctrl-C or `make stop`.")
@click.option(
    "--crds",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="SKYPOD_CRDS_DIR",
    help="Folder with KubeRay's CRD files: Ray objects are then validated strictly.",
)
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Override a recipe key.")
def rehearse(
    recipe_name: str,
    environment_name: str,
    run_id: str | None,
    keep: bool,
    crds: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Run the whole job on this machine: no AWS account, no GPU."""
    console = Console()
    order = Order.read(recipe_name, environment_name, crds, assignments)
    runs = order.folders.runs
    run = run_name(run_id if run_id is not None else f"{order.recipe.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}")

    def refuse() -> None:
        if (runs / run).exists():
            raise ConfigError(f"run {run!r} exists already in {runs}", "choose another --run")

    with begun(order, run, console, refuse) as session:
        kept_s = _perform(session, console, keep)
    _close(session, console, session.seconds - kept_s)


def _perform(session: Session, console: Console, keep: bool) -> float:
    """All stages; returns the seconds for which it was kept up between them."""
    kept_s = 0.0
    end = [
        ("Roll back to the base", stages.take_back),
        ("Stop serving", stages.serve_down),
        TEAR_DOWN,
    ]
    session.run([step for step in LEARN if not (keep and step is RAY_DOWN)])
    if keep:
        kept_s = _keep(session.rehearsal, console)
        end.insert(0, RAY_DOWN)
    session.run(end)
    return kept_s


def _keep(r: Rehearsal, console: Console) -> float:
    """Wait with everything up; returns for how many seconds."""
    env = r.substrate.aws.env
    substrate.tell_shell(r.folders.shell, {"SKYPOD_SERVING": str(r.serving_state.resolve())})
    lines = (
        f"\nAWS         {env['AWS_ENDPOINT_URL']}  (access key id {env['AWS_ACCESS_KEY_ID']})",
        f"Kubernetes  {r.substrate.kube.endpoint}",
        f"Ray         {r.ray.url}  (token authentication)",
        f"OpenAI API  {r.serving.destination.url}/v1  models {stages.MODEL_ID}, {r.served_model}",
        f"Adapters    {r.serving_state}",
        f". {r.folders.shell}  points a shell at it: aws, cdk, skypod train status, skypod adapters",
        "Ctrl-C here, or `make stop` elsewhere, destroys all of it.\n",
    )
    for line in lines:
        console.print(line, soft_wrap=True)  # an address with a line break in it cannot be copied
    since = time.monotonic()
    with suppress(KeyboardInterrupt):
        signal.pause()
    return time.monotonic() - since


def _close(session: Session, console: Console, total_s: float) -> None:
    """Report, results and times, once nothing runs any more."""
    r = session.rehearsal
    stages.forget_scratch(r)
    write_json(r.run_dir / "timings.json", session.shown.timings())
    page = report.write(r.run_dir)
    console.print(session.shown.table(total_s, session.peak_gib, r.folders.size_gib()))
    pair = stages.compare_runs(r)
    turns = r.recipe.environment.max_turns
    console.print(
        f"\nSolved of the published 64, greedy, at most {turns} turns "
        f"(ceiling {r.summaries['final']['ceiling']:.1%}):"
    )
    for label in ("baseline", "final", "served"):
        console.print(f"  {label:9s} {stages.rate(r.summaries[label])}", highlight=False)
    console.print(
        f"  won {pair['won']}, lost {pair['lost']} (exact McNemar p = {pair['p']:.2g})", highlight=False
    )
    console.print("\nGate:", highlight=False)
    for line in gate.describe(r.decision):
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    console.print(f"\nReport: {page}", highlight=False, soft_wrap=True)
    session.require_clean()
