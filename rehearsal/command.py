"""`skypod rehearse`: the whole job on this machine, from `cdk deploy` to a served adapter and back."""

import os
import re
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from cdk_app import settings
from rehearsal import preflight, stages, substrate
from rehearsal.interrupts import interruptible, uninterrupted
from rehearsal.progress import MemoryWatch, Stage, Stages
from rehearsal.stages import Rehearsal
from rehearsal.substrate import MARK, Folders
from rehearsal.warm import WarmStart
from stacks.manifests import raycluster
from training import recipe as recipes
from training import report
from training.errors import ConfigError, SkypodError
from training.files import write_json

ROOT = Path(__file__).resolve().parent.parent
Step = tuple[str, Callable[[Rehearsal, Stage], None]]
RAY_DOWN = ("Take the Ray cluster down", stages.ray_down)
LEARN = [
    ("Deploy all stacks to the emulated AWS", stages.deploy_stacks),
    ("Read back what was made", stages.read_back),
    ("Bring up the Ray cluster", stages.ray_up),
    ("Make the base policy", stages.base_policy),
    ("Make mazes and run folder", stages.make_run),
    ("Evaluate, train with SkyRL, evaluate", stages.train),
    RAY_DOWN,
    ("Publish the adapter", stages.publish),
    ("Serve base and adapter", stages.serve),
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
    folders = Folders(ROOT)
    recipe_file = recipes.find(recipe_name, ROOT / "recipes")
    chosen = recipes.load(recipe_file, _overrides(assignments))
    environment_name = settings.absolute(environment_name)  # the cdk CLI runs in another folder
    environment = settings.load(environment_name)
    raycluster.require_room(environment, chosen.topology)
    run = run_name(run_id if run_id is not None else f"{chosen.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    mark = f"{run} {secrets.token_hex(8)}"
    with preflight.only_one(folders.state), interruptible(), MemoryWatch() as memory:
        if (folders.runs / run).exists():
            raise ConfigError(f"run {run!r} exists already in {folders.runs}", "choose another --run")
        preflight.check(ROOT, folders.train_python)
        folders.prepare()
        started = time.monotonic()
        own_environment(mark)
        shown = Stages(console)
        try:
            with shown.stage("Start the emulated AWS and Kubernetes") as live:
                if crds is None:
                    live.note = "Ray objects are not validated: SKYPOD_CRDS_DIR names no folder with CRDs"
                running = ExitStack()
                parts = running.enter_context(substrate.running(folders, environment, crds))
            try:
                warm_start = running.enter_context(
                    WarmStart(
                        folders.shared / chosen.policy.base_model,
                        folders.train_python,
                        folders.state / "warmstart.log",
                    )
                )
                r = Rehearsal(
                    folders, parts, warm_start, environment_name, environment, chosen, recipe_file, run
                )
                kept_s = _perform(r, shown, console, keep)
            except Exception as error:
                parts.require_alive(error)
                raise
            finally:
                with uninterrupted():
                    running.close()
        finally:
            with uninterrupted():
                left = substrate.end_survivors(mark)
            for name in left:
                console.print(f"[red]had to kill:[/] {name}", highlight=False)
    _close(r, shown, console, memory, time.monotonic() - started - kept_s, left)


def _perform(r: Rehearsal, shown: Stages, console: Console, keep: bool) -> float:
    """All stages; returns the seconds for which it was kept up between them."""
    kept_s = 0.0
    end = [("Stop serving", stages.serve_down), ("Destroy all stacks", stages.tear_down)]
    _run([step for step in LEARN if not (keep and step is RAY_DOWN)], r, shown)
    if keep:
        kept_s = _keep(r, console)
        end.insert(0, RAY_DOWN)
    _run(end, r, shown)
    return kept_s


def _run(steps: list[Step], r: Rehearsal, shown: Stages) -> None:
    for title, stage in steps:
        with shown.stage(title) as live:
            stage(r, live)


def _keep(r: Rehearsal, console: Console) -> float:
    """Wait with everything up; returns for how many seconds."""
    env = r.substrate.aws.env
    lines = (
        f"\nAWS         {env['AWS_ENDPOINT_URL']}  (access key id {env['AWS_ACCESS_KEY_ID']})",
        f"Kubernetes  {r.substrate.kube.endpoint}",
        f"Ray         {r.ray.url}  (token authentication)",
        f"OpenAI API  {r.served_url}/v1  models {stages.MODEL_ID}, {r.served_model}",
        f". {r.folders.shell}  points a shell at it: aws, cdk, skypod train status",
        "Ctrl-C here, or `make stop` elsewhere, destroys all of it.\n",
    )
    for line in lines:
        console.print(line, soft_wrap=True)  # an address with a line break in it cannot be copied
    since = time.monotonic()
    with suppress(KeyboardInterrupt):
        signal.pause()
    return time.monotonic() - since


def _close(
    r: Rehearsal, shown: Stages, console: Console, memory: MemoryWatch, total_s: float, left: list[str]
) -> None:
    """Report, results and times, once nothing runs any more."""
    stages.forget_scratch(r)
    write_json(r.run_dir / "timings.json", shown.timings())
    page = report.write(r.run_dir)
    console.print(shown.table(total_s, memory.peak_gib, r.folders.size_gib()))
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
    console.print(f"\nReport: {page}", highlight=False, soft_wrap=True)
    if left:
        raise SkypodError(
            f"{len(left)} processes outlived the rehearsal and were killed", "report this fault"
        )


def own_environment(mark: str) -> None:
    """Shut the user's AWS, CDK, Ray and proxy settings out of this process and of all that it starts."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "CDK_", "RAY_")):
            del os.environ[name]
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = "127.0.0.1,localhost"
    os.environ |= {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        MARK: mark,
    }


def run_name(name: str) -> str:
    """A run id that is a plain folder name and a valid Ray submission id."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", name):
        raise ConfigError(f"run id {name!r} is not a plain name", "use letters, digits, '.', '_' and '-'")
    return name


def _overrides(assignments: tuple[str, ...]) -> dict[str, object]:
    """`--set a.b=1` pairs; values are read as TOML, else taken as text."""
    import tomllib

    values: dict[str, object] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(
                f"--set {assignment!r} is not KEY=VALUE", "for example --set optimization.steps=4"
            )
        try:
            values[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key] = text
    return values
