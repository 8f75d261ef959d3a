"""Plays randomly chosen tasks of a run again, to see whether the records are of the policies that they name.

Records that replay show that the actions solve the tasks, not who took them. Whoever forged them does not
know which tasks are drawn.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from training import seal, splits
from training.errors import ConfigError, DataError
from training.evaluate import EvaluationSettings, Policy, play
from training.gate.counts import OOD
from training.gate.evidence import BASE, CANDIDATE, Evidence

SHOWN = 3


def check(
    evidence: Evidence,
    count: int,
    players: Callable[[str], Policy],
    draw: random.Random,
    *,
    split: str | None = None,
    names: Sequence[str] = (BASE, CANDIDATE),
) -> list[str]:
    """Play `count` tasks of each split that decides with the policies of `names`; returns the tasks' digests.

    Those are `split`, which is that of the run's thresholds if none is named, and `ood`, of which all are
    played where it has fewer. `players` makes the player of BASE and of CANDIDATE. DataError when an action
    differs from those on record; ConfigError when the first split has fewer tasks.
    """
    split = split or evidence.recipe.gate.split
    if not 1 <= count <= len(evidence.rows[split]):
        raise ConfigError(
            f"{count} tasks of {split} cannot be played again", f"use 1 to {len(evidence.rows[split])}"
        )
    return [
        digest
        for each in dict.fromkeys((split, OOD))
        for digest in _again(evidence, each, names, count, players, draw)
    ]


def _again(
    evidence: Evidence,
    split: str,
    names: Sequence[str],
    count: int,
    players: Callable[[str], Policy],
    draw: random.Random,
) -> list[str]:
    rules, rows = evidence.recipe.environment, evidence.rows[split]
    tasks = [splits.row_task(row) for row in draw.sample(rows, min(count, len(rows)))]
    settings = EvaluationSettings(rules.make(), max_turns=rules.max_turns, reward=rules.reward)
    for name in names:
        policy = {BASE: evidence.base, CANDIDATE: evidence.candidate}[name]
        played = play(players(name), tasks, replace(settings, policy=policy))
        actions = {record.digest: record.actions for record in played}
        # From the side of the records: whatever stands for one of these tasks is looked at.
        other = [
            record
            for record in evidence.records[seal.label(name, split)]
            if record.digest in actions and record.actions != actions[record.digest]
        ]
        if other:
            shown = "; ".join(
                f"{one.key}: {_actions(actions[one.digest])}, on record {_actions(one.actions)}"
                for one in other[:SHOWN]
            )
            raise DataError(
                f"{policy} plays {len({one.digest for one in other})} of {len(tasks)} tasks of {split} "
                f"otherwise than its records say: {shown}",
                "the records are of another policy, or this machine rounds otherwise; play all of it again",
            )
    return [task.digest for task in tasks]


def _actions(actions: Sequence[str]) -> str:
    return " ".join(actions) or "nothing"
