"""`skypod evaluate`: play a split of a run with any policy, and record what came of it."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdk_app import options
from training import lineage, seal
from training.errors import ConfigError, visible
from training.files import file_digest

if TYPE_CHECKING:
    from cdk_app.candidates import Candidate
    from training.environments import Task
    from training.evaluate import EvaluationSettings, Progress
    from training.recipe import Recipe

LIVE_EPISODES = 32
LONGEST_S = 86_400
LABEL = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")
OF_THE_TRAINER = ("baseline", "final", "served")

_folder = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("run", type=_folder)
@click.option("--split", required=True, help="dev, test, test-512, ood, train, or the FILE of a split.")
@click.option("--policy", "address", metavar="URL[#MODEL]", help="A model behind an OpenAI-compatible API.")
@click.option("--adapter", type=_folder, help="A LoRA adapter, packaged or as PEFT writes it.")
@click.option("--base", is_flag=True, help="The run's base model, without an adapter.")
@click.option("--samples", default=1, show_default=True, help="Episodes of each task.")
@click.option("--temperature", default=0.0, show_default=True, help="0 is greedy.")
@click.option("--seed", default=0, show_default=True, help="Seed of the sampling.")
@click.option("--name", help="The evaluation is called NAME-SPLIT; by default NAME says who plays and how.")
@click.option("--again", metavar="REASON", help="Play a sealed split again; readers will see the reason.")
@options.shared
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds for a request.")
@click.option("--json", "as_json", is_flag=True, help="The entry as in run.json.")
def evaluate(
    run: Path,
    split: str,
    address: str | None,
    adapter: Path | None,
    base: bool,
    samples: int,
    temperature: float,
    seed: int,
    name: str | None,
    again: str | None,
    shared: Path,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Play a split of RUN, a run folder, with an endpoint, an adapter or the base model.

    Every episode is recorded in RUN/evaluations as it ends: the same command continues a play that was
    interrupted, and shows one that is finished. test, test-512 and ood are sealed: each candidate plays them
    once, and again only for a REASON.

    \b
    Examples:
      skypod evaluate runs/one --split dev --adapter runs/one/adapter/maze-0123456789ab
      skypod evaluate runs/one --split test-512 --policy http://127.0.0.1:8000#maze:maze-0123456789ab
      skypod evaluate runs/one --split dev --base --samples 8 --temperature 1 --json
    """
    from cdk_app import players
    from training import plays
    from training.evaluate import EvaluationSettings

    if sum((address is not None, adapter is not None, base)) != 1:
        raise ConfigError("who plays is not clear", "give one of --policy, --adapter or --base")
    if not 0 < timeout_s <= LONGEST_S:  # false of nan as well
        raise ConfigError(f"--timeout {timeout_s}", f"give seconds above 0, {LONGEST_S:,} at most")
    if not (run / lineage.MANIFEST).is_file():
        raise ConfigError(f"{run} holds no {lineage.MANIFEST}", "name the folder of a run: runs/<id>")
    recipe = lineage.read_recipe(run)
    rules = recipe.environment
    settings = EvaluationSettings(
        rules.make(),
        max_turns=rules.max_turns,
        reward=rules.reward,
        temperature=temperature,
        seed=seed,
        samples=samples,
        batch=LIVE_EPISODES,
    )
    split, tasks = read_tasks(run, split, recipe)
    with ExitStack() as stack:
        if address is not None:
            candidate, make = players.endpoint(run, address, recipe, settings, timeout_s, stack)
        else:
            base_dir = shared / recipe.policy.base_model
            candidate, make = players.local(run, base_dir, adapter, recipe, settings, stack)
        what = plays.Play(
            split=split,
            label=label(run, name, candidate, settings, split, again),
            tasks=tasks,
            settings=replace(settings, policy=candidate.name),
            sealed_as=candidate.sealed_as,
            again=again,
            notes={
                "source": candidate.source,
                "verified": candidate.verified,
                "temperature": temperature,
                "seed": seed if temperature else None,
            },
        )
        with progress(what.label) as show:
            entry = plays.perform(run, what, make, show)
    repeats = seal.plays(lineage.read(run), candidate.sealed_as, split)
    if as_json:
        click.echo(json.dumps({"label": what.label, **entry, "plays": repeats}, indent=2, sort_keys=True))
    else:
        click.echo("\n".join(describe(what.label, entry, repeats)))
        click.echo(f"  {'records':20s} {plays.records_path(run, what.label)}")


def read_tasks(run: Path, split: str, recipe: "Recipe") -> tuple[str, list["Task"]]:
    """The split's name and tasks: one of the run's own, or a file with its digest beside it."""
    from training import splits

    if not split.endswith(".jsonl"):
        noted = lineage.read(run)["data"]
        if split not in noted:
            raise ConfigError(f"there is no split {split!r}", f"use {', '.join(noted)}, or a .jsonl file")
        tasks = [splits.row_task(row) for row in lineage.read_split(run, split)]
        if split not in seal.SEALED:
            _require_unsealed(run / "data" / f"{split}.jsonl", tasks, recipe)
        return split, tasks
    path = Path(split)
    rows = splits.read(path)
    strange = {row["environment"] for row in rows} - {recipe.environment.name}
    if not rows or strange:
        raise ConfigError(
            f"{path} holds {len(rows)} tasks{f' of {strange.pop()!r}' if strange else ''}",
            f"give a split of {recipe.environment.name!r} with at least one task",
        )
    tasks = [splits.row_task(row) for row in rows]
    _require_unsealed(path, tasks, recipe)
    stem = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-") or "file"
    return f"{stem}-{file_digest(path)[:8]}", tasks


def _require_unsealed(path: Path, tasks: list["Task"], recipe: "Recipe") -> None:
    """ConfigError when a task has the layout of a sealed one: that would be a play past the seal.

    Sealed is what the environment's evaluation splits hold, whatever the files of the run say.
    """
    from training import splits

    for sealed, rows in splits.evaluation_pool(recipe.environment.make()):
        if sealed in seal.SEALED:
            layouts = {splits.row_task(row).canonical_layout_digest for row in rows}
            shared = sum(task.canonical_layout_digest in layouts for task in tasks)
            if shared:
                raise ConfigError(
                    f"{path} holds {shared} tasks of {sealed}, which is sealed",
                    f"play --split {sealed} itself, or take out what has its layouts, turned or mirrored too",
                )


def label(
    run: Path,
    name: str | None,
    candidate: "Candidate",
    settings: "EvaluationSettings",
    split: str,
    again: str | None,
) -> str:
    """Under which label a play is recorded; ConfigError for a name that belongs to the trainer."""
    if name is None:
        name = candidate.short
        if settings.temperature:
            name += f"-t{settings.temperature:g}-seed{settings.seed}"
        if again is not None:
            name += f"-again{len(seal.plays(lineage.read(run), candidate.sealed_as, split))}"
    if not LABEL.fullmatch(name) or name in OF_THE_TRAINER:
        raise ConfigError(
            f"an evaluation cannot be called {name!r}",
            f"use a-z, 0-9, dots and dashes; {', '.join(OF_THE_TRAINER)} are the run's own",
        )
    return f"{name}-{split}"


def describe(name: str, entry: dict[str, Any], repeats: list[dict[str, Any]]) -> list[str]:
    """An evaluation for a person, in lines."""
    how = "greedy"
    if entry["temperature"]:
        how = f"{entry['samples']} samples, temperature {entry['temperature']:g}, seed {entry['seed']}"
    over = entry["turns_over_optimal"]
    interval = f"[{entry['low']:.1%}, {entry['high']:.1%}] ({entry['interval']}, 95 %)"
    rows = [
        ("played by", entry["policy"] + ("" if entry["verified"] else " (no gate will take this)")),
        ("how", how),
        ("tasks", str(entry["n"] // entry["samples"])),
        ("solved", f"{entry['solved']} of {entry['n']}"),
        ("solve rate", f"{entry['solve_rate']:.1%} {interval}"),
        ("of solvable", f"{entry['solve_rate_of_solvable']:.1%}"),
        ("ceiling", f"{entry['ceiling']:.1%}"),
        ("format rate", f"{entry['format_rate']:.1%}"),
        ("turns over optimal", "none solved" if over is None else f"{over:.2f}"),
        ("pass@k", ", ".join(f"{k}: {rate:.1%}" for k, rate in entry["pass_at_k"].items())),
    ]
    for number, play in enumerate(repeats, start=1):
        if number > 1:
            rows.append((f"REPEAT {number}", visible(f"{play['label']}: {play['again']}")))
    return [name, *(f"  {title:20s} {text}" for title, text in rows)]


@contextmanager
def progress(what: str) -> Iterator[Callable[["Progress"], None]]:
    """Shows a play on standard error: a bar on a terminal, else a line at each tenth."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[solved]} solved", style="dim"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(what, total=None, solved=0)
    last: Progress | None = None

    def show(now: "Progress") -> None:
        nonlocal last
        tenth = now.finished * 10 // now.total
        if not console.is_terminal and tenth != (last.finished * 10 // last.total if last else 0):
            click.echo(f"{what}: {now.finished}/{now.total} played, {now.solved} solved", err=True)
        last = now
        bar.update(task, completed=now.finished, total=now.total, solved=now.solved)

    try:
        with bar:
            yield show
    except BaseException:
        if last and last.finished < last.total:
            kept = f"{last.finished} of {last.total} episodes are kept"
            click.echo(f"{kept}; the same command continues", err=True)
        raise
