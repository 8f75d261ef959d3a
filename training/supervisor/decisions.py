"""What the supervisor does next, decided from plain facts; nothing here has an effect or asks a clock."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from training.errors import ConfigError
from training.jobs import Node
from training.recipe import Recovery, Topology
from training.supervisor.failure import Failure, Kind

NODE_DEAD_S = 15.0
"""Ray calls a node dead when it missed five checks, three seconds apart; until then it counts as alive."""


@dataclass(frozen=True)
class Retry:
    """Start another attempt in `after_s` seconds."""

    after_s: float


@dataclass(frozen=True)
class GiveUp:
    """Start no other; `problem` and `remedy` are for whoever looks."""

    problem: str
    remedy: str


@dataclass(frozen=True)
class Past:
    """What happened since a person started or resumed the run; `fruitless` attempts at the end of it."""

    attempts: int
    fruitless: int
    failure: Failure | None
    """How the last attempt failed; None before the first."""

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]], failure: Failure | None) -> "Past":
        """From the manifest's ended attempts, oldest first."""
        fruitless = 0
        for row in reversed(rows):
            if row.get("to_step", 0) > row.get("from_step", 0):
                break
            fruitless += 1
        return cls(len(rows), fruitless, failure)


def next_move(past: Past, recovery: Recovery) -> Retry | GiveUp:
    """After an attempt, or before the first; budgets of time and money are `overspent`'s."""
    failure = past.failure
    cause = f"; the last ended with {failure.kind}: {failure.message}" if failure else ""
    if failure and not failure.may_pass:
        return GiveUp(f"another attempt would not help ({failure.kind}): {failure.message}", failure.remedy)
    if failure and past.fruitless >= recovery.max_fruitless_attempts:
        return GiveUp(f"{past.fruitless} attempts in a row wrote no checkpoint{cause}", failure.remedy)
    if past.attempts >= recovery.max_attempts:
        return GiveUp(
            f"all {recovery.max_attempts} attempts are used up{cause}",
            "see why so many failed, then resume the run or raise recovery.max_attempts",
        )
    if failure is None:
        return Retry(0.0)
    backoff_s = min(recovery.longest_backoff_s, recovery.backoff_s * 2.0**past.fruitless)
    return Retry(max(backoff_s, NODE_DEAD_S if failure.kind is Kind.NODE_LOST else 0.0))


def require_price(usd_per_hour: float | None) -> None:
    """Raises ConfigError for what is no price: with NaN, nothing would ever be overspent."""
    if usd_per_hour is not None and not 0 <= usd_per_hour < math.inf:
        raise ConfigError(
            f"{usd_per_hour} USD an hour is no price", "give --usd-per-hour as zero or more dollars"
        )


def overspent(recovery: Recovery, spent_s: float, usd_per_hour: float | None) -> GiveUp | None:
    """Why no second more may be spent on the run, None while more may be."""
    hours = spent_s / 3600
    if recovery.max_hours is not None and hours >= recovery.max_hours:
        return GiveUp(
            f"the run has taken {hours:.2f} hours, and recovery.max_hours is {recovery.max_hours:g}",
            "raise it in the recipe and resume the run with that",
        )
    usd = hours * (usd_per_hour or 0.0)
    if recovery.max_usd is not None and usd >= recovery.max_usd:
        return GiveUp(
            f"the run has cost {usd:.2f} USD, and recovery.max_usd is {recovery.max_usd:g}",
            "raise it in the recipe and resume the run with that",
        )
    return None


def lacking(nodes: Sequence[Node], topology: Topology) -> str:
    """What the recipe's topology misses, in words; empty when it is whole."""
    fit = sum(node.alive and node.gpus >= topology.gpus_per_node for node in nodes)
    if fit >= topology.worker_nodes:
        return ""
    return f"{fit} of {topology.worker_nodes} workers with {topology.gpus_per_node} GPUs are alive"
