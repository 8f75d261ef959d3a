"""Does a reward pay for solving? Scripted adversaries play a fixed set of tasks and are paid.

The score of an episode has to keep four promises, on every episode of the cast in `adversaries`:
1. it lies within the bounds that the reward declares;
2. every solved episode is paid more than every episode that is not solved, whatever the tasks;
3. on average, whoever never solves is paid less than whoever solves at all;
4. nobody solves by talk: what stuffs, quotes, babbles, idles or stops at random is not called solved.
The second is what a policy learns from within a group of episodes of one task; the third what it learns from
between tasks. They have to hold in the turns allowed and in WASTE times as many: where time is short there is
no room to be sloppy, and a reward that pays format above solving looks fair.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from training import splits
from training.audits.adversaries import CAST, Adversary, Insight
from training.environments import Environment, Game, Task
from training.errors import DataError
from training.recipe import Recipe
from training.reward import Reward, named

TASKS = 16
"""Tasks of the fixed set: the first of the dev split."""
WASTE = 4
"""How many times the turns allowed the cast plays with in its second round."""


@dataclass(frozen=True)
class Earned:
    """What one adversary got. `solved`, `paid` are shares of its episodes; `paid` is what SkyRL's `pass_at_1`
    counts as passed, any last reward above 0."""

    adversary: str
    does: str
    solved: float
    score: float
    lowest: float
    highest: float
    format_ok: float
    turns: float
    paid: float


@dataclass(frozen=True)
class RewardAudit:
    """`earned` has the best paid first; `faults` are the promises that were broken, none in a fair reward."""

    environment: str
    options: dict[str, Any]
    reward: str
    pays: str
    tasks: int
    max_turns: int
    earned: tuple[Earned, ...]
    faults: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.faults

    @property
    def never_solved_but_paid(self) -> tuple[str, ...]:
        """Adversaries that solve nothing and yet would have a `pass_at_1` of 1."""
        return tuple(one.adversary for one in self.earned if one.solved == 0 and one.paid == 1)

    def require(self) -> None:
        """DataError when the reward broke a promise."""
        if self.faults:
            raise DataError(
                f"audit of reward {self.reward!r}: " + "; ".join(self.faults),
                "see `skypod audit-reward`, and choose or write a reward under which only solving pays",
            )

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values, with "passed" and "never_solved_but_paid"."""
        return {
            **asdict(self),
            "passed": self.passed,
            "never_solved_but_paid": list(self.never_solved_but_paid),
        }


@dataclass(frozen=True)
class _Episode:
    adversary: Adversary
    task: str
    solved: bool
    score: float
    format_ok: float
    turns: int


def audit(environment: Environment, reward: Reward, tasks: Sequence[Task], max_turns: int) -> RewardAudit:
    """Plays the whole cast, each adversary with its own fixed draws. DataError when nobody could solve.

    `earned` is of `max_turns`.
    """
    episodes, longer = (
        [_play(environment, reward, one, task, turns) for one in CAST for task in tasks]
        for turns in (max_turns, WASTE * max_turns)
    )
    if not any(episode.solved for episode in episodes):
        raise DataError(
            f"no adversary, the oracle included, solves any of {len(tasks)} tasks in {max_turns} turns",
            "allow more turns, or check the environment's world and best_action",
        )
    faults = _faults(reward, episodes) or [
        f"{fault} (with {WASTE * max_turns} turns)" for fault in _faults(reward, longer)
    ]
    return RewardAudit(
        environment=environment.name,
        options=environment.options,
        reward=reward.name,
        pays=reward.pays,
        tasks=len(tasks),
        max_turns=max_turns,
        earned=tuple(_earnings(episodes)),
        faults=tuple(faults),
    )


def of_recipe(chosen: Recipe) -> RewardAudit:
    """The audit of a recipe's reward in its environment."""
    rules = chosen.environment
    return _of_rules(rules.make(), rules.reward, rules.max_turns)


@cache
def _of_rules(environment: Environment, reward: str, max_turns: int) -> RewardAudit:
    """Once for all seeds of a sweep: every draw of the audit is fixed."""
    return audit(environment, named(reward), fixed_tasks(environment), max_turns)


def fixed_tasks(environment: Environment) -> list[Task]:
    """What the audit plays, the same for every run."""
    return [splits.row_task(row) for row in splits.evaluation_pool(environment).dev[:TASKS]]


def _play(
    environment: Environment, reward: Reward, adversary: Adversary, task: Task, max_turns: int
) -> _Episode:
    game = Game(environment, task, max_turns, replay=True)
    seen = Insight(game, random.Random(f"{adversary.name} {task.digest}"))  # noqa: S311 (a replayable draw)
    while not game.done:
        seen.say(adversary.answer(seen))
    return _Episode(adversary, task.digest, game.solved, float(reward(game)), game.format_ok, game.turns)


def _faults(reward: Reward, episodes: Sequence[_Episode]) -> list[str]:
    return [
        *_out_of_bounds(reward, episodes),
        *_misordered_episodes(episodes),
        *_misordered_policies(_earnings(episodes)),
        *_solved_by_talk(episodes),
    ]


def _earnings(episodes: Sequence[_Episode]) -> list[Earned]:
    """The best paid first."""
    parts = [[episode for episode in episodes if episode.adversary is adversary] for adversary in CAST]
    return sorted(map(_earned, parts), key=lambda one: (-one.score, -one.solved, one.adversary))


def _earned(episodes: Sequence[_Episode]) -> Earned:
    n = len(episodes)
    scores = [episode.score for episode in episodes]
    return Earned(
        adversary=episodes[0].adversary.name,
        does=episodes[0].adversary.does,
        solved=sum(episode.solved for episode in episodes) / n,
        score=sum(scores) / n,
        lowest=min(scores),
        highest=max(scores),
        format_ok=sum(episode.format_ok for episode in episodes) / n,
        turns=sum(episode.turns for episode in episodes) / n,
        paid=sum(score > 0 for score in scores) / n,
    )


def _out_of_bounds(reward: Reward, episodes: Sequence[_Episode]) -> list[str]:
    for episode in episodes:
        if not (math.isfinite(episode.score) and reward.lowest <= episode.score <= reward.highest):
            return [
                f"bounds: {reward.name} declares {reward.lowest:g} to {reward.highest:g}, and pays "
                f"{episode.score:g} to {episode.adversary.name!r} on task {episode.task}"
            ]
    return []


def _misordered_episodes(episodes: Sequence[_Episode]) -> list[str]:
    best_failure = max((e for e in episodes if not e.solved), key=lambda e: e.score, default=None)
    worst_success = min((e for e in episodes if e.solved), key=lambda e: e.score)
    if best_failure is None or best_failure.score < worst_success.score:
        return []
    return [
        f"episodes: {best_failure.adversary.name!r} is paid {best_failure.score:.3f} on task "
        f"{best_failure.task} without solving it, {worst_success.adversary.name!r} only "
        f"{worst_success.score:.3f} for solving task {worst_success.task}"
    ]


def _misordered_policies(earned: Sequence[Earned]) -> list[str]:
    never = max((one for one in earned if one.solved == 0), key=lambda one: one.score, default=None)
    solver = min((one for one in earned if one.solved > 0), key=lambda one: one.score)
    if never is None or never.score < solver.score:
        return []
    return [
        f"policies: {never.adversary!r} never solves and is paid {never.score:.3f} on average, "
        f"{solver.adversary!r} solves {solver.solved:.0%} for {solver.score:.3f}"
    ]


def _solved_by_talk(episodes: Sequence[_Episode]) -> list[str]:
    guilty = sorted({e.adversary.name for e in episodes if e.solved and not e.adversary.may_solve})
    return [f"world: {name!r} cannot have solved anything, and is called a solver" for name in guilty]
