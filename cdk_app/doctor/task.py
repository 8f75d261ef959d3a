"""Whether the recipe's task can be solved in its turns, its gate be passed, and its test be trusted."""

from pathlib import Path

from cdk_app.doctor.finding import Finding, Status, judge
from training import splits
from training.audits import ancestry, contamination, reward
from training.audits.contamination import Contamination
from training.audits.reward import RewardAudit
from training.errors import ConfigError, DataError
from training.evaluate import ceiling
from training.gate.thresholds import check_attainable
from training.recipe import Recipe

AREA = "recipe"


def check(recipe: Recipe, shared: Path) -> list[Finding]:
    """Everything that preparing the run would refuse, and what it would let pass in silence."""
    try:
        drawn = dict(splits.of_recipe(recipe))
    except DataError as error:
        return [Finding(AREA, "splits", Status.FAILED, error.problem, remedy=error.remedy)]
    findings = [check_horizon(recipe, drawn["test"]), check_gate(recipe, drawn[recipe.gate.split])]
    for name, audit in (
        ("reward", lambda: check_reward(reward.of_recipe(recipe))),
        (
            "contamination",
            lambda: check_contamination(
                contamination.audit(drawn, ancestry.read(shared / recipe.policy.base_model))
            ),
        ),
    ):
        try:
            findings.append(audit())
        except DataError as error:
            findings.append(Finding(AREA, name, Status.FAILED, error.problem, remedy=error.remedy))
    return findings


def check_horizon(recipe: Recipe, rows: tuple[splits.Row, ...]) -> Finding:
    """The share of the published test that an oracle solves in time: no solve rate can be higher."""
    environment, turns = recipe.environment.make(), recipe.environment.max_turns
    tasks = [splits.row_task(row) for row in rows]
    share = ceiling(environment, tasks, turns)
    needed = max(environment.optimal_turns(task) for task in tasks)
    return judge(
        AREA,
        "horizon ceiling",
        share == 1,
        f"{share:.1%} of the test can be solved in {turns} turns",
        needed=f"{needed} turns for all",
        remedy=f"set environment.max_turns = {needed} or more, or read every solve rate against {share:.1%}",
        warn=share > 0,
    )


def check_gate(recipe: Recipe, rows: tuple[splits.Row, ...]) -> Finding:
    environment = recipe.environment.make()
    share = ceiling(environment, map(splits.row_task, rows), recipe.environment.max_turns)
    said = f"{recipe.gate.split}: {share:.1%} of {len(rows)} tasks can be solved"
    try:
        check_attainable(recipe.gate, share, len(rows))
    except ConfigError as error:
        return Finding(AREA, "gate", Status.FAILED, error.problem, remedy=error.remedy)
    return Finding(AREA, "gate", Status.OK, said, f"a solve rate of {recipe.gate.min_solve_rate:.0%}")


def check_reward(found: RewardAudit) -> Finding:
    """Whether scripted adversaries, who do not play, could earn from the reward."""
    return judge(
        AREA,
        "reward",
        found.passed,
        "; ".join(found.faults) or f"{found.reward}: {len(found.earned)} adversaries earn what it promises",
        remedy="see `skypod audit-reward`, and choose a reward under which only solving pays",
    )


def check_contamination(found: Contamination) -> Finding:
    if not found.passed:
        remedy = "change data.seed or the sizes in [data], or use a base model that was not taught these"
        return Finding(AREA, "contamination", Status.FAILED, "; ".join(found.faults), remedy=remedy)
    if not found.declared:
        return Finding(
            AREA,
            "contamination",
            Status.WARNING,
            f"none within the run; what the base model was taught is not declared: {found.why}",
            remedy="report results on test-512 too, which is drawn here; see `skypod audit-contamination`",
        )
    taught = sum(body["tasks"] for body in found.taught)
    said = f"none within the run, nor in the {taught:,} tasks that the base model was taught"
    return Finding(AREA, "contamination", Status.OK, said)
