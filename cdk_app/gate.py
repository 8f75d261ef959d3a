"""`skypod gate`: does a run's candidate pass, on evidence that a hostile reader would accept?"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdk_app import options
from training.errors import ConfigError, DataError
from training.gate.conditions import Condition
from training.gate.decision import Decision

if TYPE_CHECKING:
    from training.evaluate import Policy
    from training.gate import judge
    from training.gate.evidence import Evidence

_run = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("run", nargs=-1, required=True, type=_run)
@click.option("--incumbent", type=_run, help="The run whose adapter is served now.")
@click.option(
    "--replay",
    type=click.IntRange(min=1),
    metavar="N",
    help="Play N random tasks again with base and adapter from disk: every action has to be that on record.",
)
@options.shared
@click.option(
    "--json", "as_json", is_flag=True, help="The decision with its evidence, as written to gate.json."
)
@click.pass_context
def gate(
    ctx: click.Context,
    run: tuple[Path, ...],
    incumbent: Path | None,
    replay: int | None,
    shared: Path,
    as_json: bool,
) -> None:
    """Decide whether RUN's candidate passes the thresholds of its recipe.

    RUN is a run folder; several are seeds of one recipe, and then all have to pass. Base, candidate and
    incumbent are compared on the same sealed tasks. The decision goes into gate.json, gate.html and run.json
    of every RUN; when the evidence is not sound, nothing is written.

    Exit status: 0 passed, 1 refused or unsound evidence, 2 wrong input or thresholds that cannot be met, 3 no
    room for the copy that it reads: nothing was decided.

    \b
    Examples:
      skypod gate runs/maze-rehearsal-0
      skypod gate runs/seed-0 runs/seed-1 runs/seed-2 --incumbent runs/served --json
    """
    from training.gate import judge

    decision, written = judge.judge(
        run,
        incumbent,
        lambda text: click.echo(text, err=True),
        replayer(replay, shared) if replay else None,
    )
    if as_json:
        click.echo(json.dumps(written, indent=2, sort_keys=True))
    else:
        for line in describe(decision):
            click.echo(line)
        for line in told(written):
            click.echo(line)
        click.echo(f"Page: {run[0] / judge.PAGE}")
    ctx.exit(0 if decision.passed else 1)


def told(written: dict[str, Any]) -> list[str]:
    """What a reader of the decision has to know of its evidence: what was played again, and what the base may
    know."""
    lines = [
        f"{name}: {len(tasks)} tasks played again, every action as on record."
        for name, tasks in written["replayed"].items()
    ]
    lines += [
        f"The incumbent {name} was not played again: {why}." for name, why in written["not_replayed"].items()
    ]
    lines += [
        f"What the base of {name} was taught is not declared: {shown['ancestry']['why']}."
        for name, shown in written["evidence"].items()
        if not shown["ancestry"]["declared"]
    ]
    return lines


def replayer(count: int, shared: Path) -> "judge.Replay":
    """What plays `count` tasks of a run again, with its base and adapter from disk."""
    from contextlib import ExitStack

    from cdk_app import candidates, players
    from serving.local import require_libraries
    from training.evaluate import EvaluationSettings
    from training.gate import replay
    from training.gate.evidence import BASE

    require_libraries()

    def again(evidence: "Evidence", split: str, names: Sequence[str]) -> list[str]:
        recipe, rules = evidence.recipe, evidence.recipe.environment
        settings = EvaluationSettings(rules.make(), max_turns=rules.max_turns, reward=rules.reward)
        adapter = evidence.folder / evidence.manifest["adapter"]["folder"]
        base_dir = shared / recipe.policy.base_model
        try:
            candidates.base(evidence.folder, base_dir)
        except DataError as error:  # without its base a run cannot be played, which says nothing against it
            raise ConfigError(error.problem, error.remedy) from None
        _require_same_lessons(evidence.folder, base_dir)
        with ExitStack() as stack:

            def player(name: str) -> "Policy":
                folder = None if name == BASE else adapter
                found, make = players.local(evidence.folder, base_dir, folder, recipe, settings, stack)
                if found.name != (judged := evidence.base if name == BASE else evidence.candidate):
                    raise DataError(
                        f"{found.name} lies where {judged} was judged", "restore it, and decide again"
                    )
                return make()

            draw = random.SystemRandom()
            return replay.check(evidence, count, player, draw, split=split, names=names)

    return again


def _require_same_lessons(run: Path, base_dir: Path) -> None:
    """The base is at hand here: what it declares has to be what the run's audit looked at."""
    from training.audits import ancestry, contamination

    kept, own = (ancestry.read(folder) for folder in (run / contamination.FOLDER, base_dir))
    if kept != own:  # lists, and what is said of them: names, symmetries, generators, whether it is declared
        raise DataError(
            f"{base_dir} declares other lessons than {run / contamination.FOLDER}",
            "the declaration in the run was changed; prepare a new run",
        )


def describe(decision: Decision) -> list[str]:
    """The decision for a person, in lines."""
    several = decision.seeds is not None
    lines = [_line(condition, several) for condition in decision.conditions]
    for run, looks in decision.looks.items():
        if looks > 1:
            split = decision.thresholds["split"]
            lines.append(f"{looks} candidates or outcomes of {run} saw {split}: adjusted for all of them.")
    unmet, of = len(decision.unmet), len(decision.conditions)
    return [*lines, f"Refused: {unmet} of {of} conditions unmet." if unmet else "Passed."]


def _line(condition: Condition, several: bool) -> str:
    run = f"{condition.run}: " if several else ""
    return f"{'✓' if condition.passed else '✗'} {run}{condition.name}: {condition.says}"
