"""`skypod sweep`: one recipe under several seeds, on one deployment and one Ray cluster."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cdk_app import settings
from rehearsal import stages
from rehearsal.command import RAY_DOWN, STAND, TEAR_DOWN
from rehearsal.progress import Stage
from rehearsal.session import Order, begun, run_name
from rehearsal.stages import Rehearsal
from training import lineage, plays, recorded, report, seal, sweep
from training.errors import ConfigError
from training.files import read_object, write_json


@click.command(name="sweep")
@click.argument("recipe_name", metavar="RECIPE")
@click.option(
    "--seeds", "seeds_text", default="0,1,2", show_default=True, help="Whole numbers, comma between."
)
@click.option(
    "--name", default=None, help="Folder below runs/sweeps; by default the recipe's name and digest."
)
@click.option("--environment", "environment_name", default=settings.DEFAULT, show_default=True)
@click.option(
    "--crds",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="SKYPOD_CRDS_DIR",
    help="Folder with KubeRay's CRD files: Ray objects are then validated strictly.",
)
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Override a recipe key.")
@click.option("--json", "as_json", is_flag=True, help="Print sweep.json; progress goes to stderr.")
def command(
    recipe_name: str,
    seeds_text: str,
    name: str | None,
    environment_name: str,
    crds: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run RECIPE once for each seed, on this machine, and say what all runs say together.

    Ctrl-C stops it; the same command goes on: finished seeds are not run again, an interrupted one resumes
    from its newest checkpoint.

    Example: skypod sweep rehearsal --seeds 0,1,2
    """
    console = Console(stderr=as_json)
    order = Order.read(recipe_name, environment_name, crds, assignments)
    asked = parse_seeds(seeds_text)
    name = run_name(name or f"{order.recipe.name}-{sweep.digest(order.recipe)[:8]}")
    folder = order.folders.runs / "sweeps" / name
    path = folder / sweep.FILE
    seeds = list(asked)
    if path.is_file():
        earlier = read_object(path)
        sweep.require_same(order.recipe, earlier)
        # A seed that was begun stays in the result, whatever came of it.
        seeds = sorted({*earlier["seeds"], *asked})
    runs = {seed: order.folders.runs / f"{name}-seed{seed}" for seed in seeds}
    sweep.require_own(order.recipe, runs)
    write_json(path, sweep.collect(name, order.recipe, runs))
    todo = [seed for seed in asked if not sweep.is_finished(runs[seed])]
    for seed in asked:
        if seed not in todo:
            console.print(f"seed {seed} is finished: {runs[seed].name}", highlight=False)
    if todo:
        _run(order, name, runs, todo, path, console)
    found = read_object(path)
    page = report.write_sweep(folder)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        for line in describe(found):
            console.print(line, highlight=False)
        console.print(f"\nReport: {page}", highlight=False, soft_wrap=True)


def _run(
    order: Order, name: str, runs: Mapping[int, Path], todo: list[int], path: Path, console: Console
) -> None:
    """The seeds that are not finished, one after another; sweep.json is written after each."""
    with begun(order, name, console) as session:
        session.run(STAND)
        for seed in todo:
            recipe = sweep.seeded(order.recipe, seed)
            r = replace(session.rehearsal, recipe=recipe, run=runs[seed].name)
            steps = (
                [] if runs[seed].exists() else [(f"Seed {seed}: make mazes and run folder", stages.make_run)]
            )
            steps.append((f"Seed {seed}: evaluate, train with SkyRL, evaluate", _train(runs)))
            session.run(steps, r)
            stages.forget_scratch(r)
            write_json(r.run_dir / "timings.json", session.shown.timings()[-len(steps) :])
            report.write(r.run_dir)
            write_json(path, sweep.collect(name, order.recipe, runs))
        session.run([RAY_DOWN, TEAR_DOWN])
    write_json(path.with_name("timings.json"), session.shown.timings())
    session.require_clean()


def _train(runs: Mapping[int, Path]) -> Any:
    def train(r: Rehearsal, stage: Stage) -> None:
        for other in runs.values():
            if sweep.is_finished(other):
                adopt_base(r.run_dir, other)
                break
        stages.train(r, stage)

    return train


def adopt_base(run_dir: Path, other: Path) -> None:
    """Take over the base's plays from a finished run, where base, tasks and rules are the same.

    The base is one candidate, whatever the seed, and the sealed splits are played once per candidate; the
    trainer then finds these records complete and seals them. So they have to be what that run sealed:
    DataError where they were changed. The manifest says where they are from.
    """
    mine, theirs = lineage.read(run_dir), lineage.read(other)
    same = mine["base"] == theirs["base"] and mine["recipe"]["environment"] == theirs["recipe"]["environment"]
    adopted, base = [], "base:" + mine["base"]["digest"][:16]
    for split in ("dev", *seal.SEALED):
        label = "dev-0000" if split == "dev" else seal.label("baseline", split)
        source, target = (plays.records_path(folder, label) for folder in (other, run_dir))
        if not same or mine["data"][split] != theirs["data"][split] or target.exists():
            continue
        if recorded.is_finished(theirs, source) and theirs["evaluations"][label]["policy"] == base:
            adopted.append(label)
    for label in adopted:
        target = plays.records_path(run_dir, label)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(plays.records_path(other, label), target)
    if adopted:
        lineage.update(run_dir, base_played_by={"run": other.name, "labels": adopted})


def parse_seeds(text: str) -> list[int]:
    """`0,1,2` as numbers. Raises ConfigError unless they are whole, 0 or more, and all different."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len({int(part) for part in parts}) != len(parts):
        raise ConfigError(
            f"--seeds {text!r} is no list of different whole numbers of 0 or more",
            "for example --seeds 0,1,2",
        )
    return [int(part) for part in parts]


def describe(found: Mapping[str, Any]) -> list[str]:
    """A sweep in a few lines for a person."""
    lines = []
    for split, spreads in found["spread"].items():
        for when in ("baseline", "final"):
            one = spreads[when]
            values = " ".join(f"{value:.1%}" for value in one["values"])
            interval = f" [{one['low']:.1%}, {one['high']:.1%}]" if one["low"] is not None else ""
            lines.append(
                f"{split:9s} {when:9s} mean {one['mean']:.1%}{interval}, worst {one['worst']:.1%} ({values})"
            )
    if found["missing"]:
        lines.append(f"not finished: seeds {', '.join(map(str, found['missing']))}")
    return lines
