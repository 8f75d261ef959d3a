"""`skypod audit-reward` and `skypod audit-contamination`: can the numbers of a run be believed at all?"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from training import lineage
from training.errors import ConfigError

if TYPE_CHECKING:
    from training.audits.contamination import Comparison, Contamination
    from training.audits.reward import RewardAudit

RECIPES = Path(__file__).resolve().parent.parent / "recipes"

_run = click.Path(exists=True, file_okay=False, path_type=Path)
_as_json = click.option("--json", "as_json", is_flag=True, help="The report as JSON, as in run.json.")


@click.command("audit-reward")
@click.argument("run", required=False, type=_run)
@click.option("--environment", "environment_name", help="An environment by name, with its default options.")
@click.option("--recipe", "recipe_name", help="The environment and reward of a recipe, by name or path.")
@click.option("--reward", "reward_name", help="Another reward than that of the recipe or run.")
@_as_json
@click.pass_context
def audit_reward(
    ctx: click.Context,
    run: Path | None,
    environment_name: str | None,
    recipe_name: str | None,
    reward_name: str | None,
    as_json: bool,
) -> None:
    """Let scripted adversaries play for a reward, and see whether only solving pays.

    Name a RUN folder, a recipe or an environment. Every adversary plays the same tasks. The audit fails where
    the reward leaves the bounds that it declares, pays any unsolved episode as much as a solved one, pays a
    policy that never solves as much as one that solves, or where talk is called solving.

    Exit status: 0 passed, 1 failed, 2 wrong input.

    \b
    Examples:
      skypod audit-reward --recipe rehearsal
      skypod audit-reward --environment counting --reward solve-format-v1 --json
      skypod audit-reward runs/maze-rehearsal-0
    """
    from training import environments, recipe
    from training import reward as rewards
    from training.audits import reward as audits

    if sum(given is not None for given in (run, environment_name, recipe_name)) != 1:
        raise ConfigError("what is to be audited is not clear", "name one of RUN, --recipe or --environment")
    if environment_name is not None:
        environment, max_turns = environments.named(environment_name), None
        name = rewards.DEFAULT
    else:
        chosen = recipe.load(recipe.find(recipe_name, RECIPES)) if run is None else lineage.read_recipe(run)
        environment, max_turns = chosen.environment.make(), chosen.environment.max_turns
        name = chosen.environment.reward
    tasks = audits.fixed_tasks(environment)
    turns = max_turns or 2 * max(map(environment.optimal_turns, tasks))
    found = audits.audit(environment, rewards.named(reward_name or name), tasks, turns)
    if run is not None and reward_name in (None, name):
        lineage.record_audit(run, "reward", found.to_json())
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else _reward_page(found))
    ctx.exit(0 if found.passed else 1)


@click.command("audit-contamination")
@click.argument("run", type=_run)
@_as_json
@click.pass_context
def audit_contamination(ctx: click.Context, run: Path, as_json: bool) -> None:
    """Count what RUN's splits repeat: of each other, of the training rows, of what the base model was taught.

    RUN is a run folder. Its files have to be unchanged and be what its recipe draws. Counted are the same
    task, the same layout, and both up to rotation and reflection. The result goes into run.json.

    Exit status: 0 clean, 1 refused, 2 wrong input.

    \b
    Examples:
      skypod audit-contamination runs/maze-rehearsal-0
      skypod audit-contamination runs/maze-rehearsal-0 --json
    """
    from training.audits import contamination

    found = contamination.audit_run(run)
    noted = lineage.read(run).get("audits", {}).get("contamination", {})
    kept = {finding: noted.get(finding) for finding in contamination.FINDINGS}
    lineage.record_audit(run, "contamination", found.to_json() | kept)
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else _contamination_page(found))
    ctx.exit(0 if found.passed else 1)


def _reward_page(found: "RewardAudit") -> str:
    options = ", ".join(f"{key} {value}" for key, value in found.options.items())
    lines = [
        f"{found.reward}: {found.pays}",
        f"{found.environment}{f' ({options})' if options else ''}, {found.tasks} tasks, at most "
        f"{found.max_turns} turns",
        "",
        f"{'adversary':16} {'solved':>7} {'score':>7} {'lowest':>7} {'highest':>7} {'turns':>6} {'paid':>6}",
    ]
    lines += [
        f"{one.adversary:16} {one.solved:7.1%} {one.score:7.3f} {one.lowest:7.3f} {one.highest:7.3f} "
        f"{one.turns:6.1f} {one.paid:6.0%}  {one.does}"
        for one in found.earned
    ]
    if found.never_solved_but_paid:
        lines += [
            "",
            f"SkyRL's pass_at_1 (last reward above 0) would call {len(found.never_solved_but_paid)} of these "
            "passed that solve nothing; solve_rate does not.",
        ]
    return "\n".join([*lines, "", *_verdict(found.faults)])


def _contamination_page(found: "Contamination") -> str:
    kinds = f"{'exact':>6} {'layout':>7} {'symmetry':>9} {'layout+sym.':>12}"
    lines = [f"{'split':9} {'rows':>5}  {'seen in':22} {kinds}", *map(_comparison, found.comparisons), ""]
    if found.declared:
        taught = ", ".join(f"{body['name']} ({body['tasks']:,} tasks)" for body in found.taught)
        lines.append(f"Ancestry declared: {taught or 'no tasks'}.")
    else:
        lines.append(f"Ancestry not declared: {found.why}.")
        if found.source:
            lines.append(f"Draws in the ancestry's place (~): {found.source}.")
    return "\n".join([*lines, *_verdict(found.faults)])


def _comparison(one: "Comparison") -> str:
    mark = "~" if one.guessed else ""
    declared = f"  {one.declared} mirrored on purpose" if one.declared else ""
    return (
        f"{one.split:9} {one.rows:5}  {mark + one.seen_in:22} {one.exact:6} {one.same_layout:7} "
        f"{one.same_up_to_symmetry:9} {one.same_layout_up_to_symmetry:12}{declared}"
    )


def _verdict(faults: tuple[str, ...]) -> list[str]:
    return [f"✗ {fault}" for fault in faults] + ["Failed." if faults else "Passed."]
