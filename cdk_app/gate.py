"""`skypod gate`: does a run's candidate pass, on evidence that a hostile reader would accept?"""

import json
from pathlib import Path

import click

from training.gate.conditions import Condition
from training.gate.decision import Decision

_run = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("run", nargs=-1, required=True, type=_run)
@click.option("--incumbent", type=_run, help="The run whose adapter is served now.")
@click.option(
    "--json", "as_json", is_flag=True, help="The decision with its evidence, as written to gate.json."
)
@click.pass_context
def gate(ctx: click.Context, run: tuple[Path, ...], incumbent: Path | None, as_json: bool) -> None:
    """Decide whether RUN's candidate passes the thresholds of its recipe.

    RUN is a run folder; several are seeds of one recipe, and then all have to pass. Base, candidate and
    incumbent are compared on the same sealed tasks. The decision goes into gate.json, gate.html and run.json
    of every RUN; when the evidence is not sound, nothing is written.

    Exit status: 0 passed, 1 refused or unsound evidence, 2 wrong input or thresholds that cannot be met.

    \b
    Examples:
      skypod gate runs/maze-rehearsal-0
      skypod gate runs/seed-0 runs/seed-1 runs/seed-2 --incumbent runs/served --json
    """
    from training.gate import judge

    decision, written = judge.judge(run, incumbent, lambda text: click.echo(text, err=True))
    if as_json:
        click.echo(json.dumps(written, indent=2, sort_keys=True))
    else:
        for line in describe(decision):
            click.echo(line)
        click.echo(f"Page: {run[0] / judge.PAGE}")
    ctx.exit(0 if decision.passed else 1)


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
