"""A campaign, drawn from a seed: which fault strikes which run in which step and phase."""

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rehearsal.drills.faults import BOUNDARY, FAULTS, START
from training.errors import ConfigError
from training.recipe import Recipe

PER_RUN = 8

_SAVED = ("checkpoint", "sync", BOUNDARY)
"""Struck there, a step may be saved and is not made again: only the next one shows that the run recovered,
so nothing else may strike that one."""


@dataclass(frozen=True)
class Strike:
    """One fault at one moment: `fraction` of the phase's usual length after the phase has been announced."""

    fault: str
    phase: str
    step: int
    fraction: float


def possible(names: Collection[str], needs: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The faults among `names` that can be had, and why not of the others; `needs` says what is missing here.

    Raises ConfigError for a fault that is none, and when none is left.
    """
    if unknown := sorted(set(names) - set(FAULTS)):
        raise ConfigError(f"there is no fault {unknown[0]!r}", f"choose among {', '.join(FAULTS)}")
    without = {name: why for name in names if (why := needs.get(FAULTS[name].needs, ""))}
    left = [name for name in names if name not in without]
    if not left:
        raise ConfigError("; ".join(f"{name}: {why}" for name, why in without.items()), "run it as root")
    return left, without


def draw(recipe: Recipe, kills: int, seed: int, names: Collection[str]) -> list[list[Strike]]:
    """The strikes of each run, by step; every fault once before any comes again, in another phase if it can.

    Raises ConfigError for a recipe that loses finished steps by its own will, or has too few.
    """
    if recipe.checkpoints.every_steps != 1:
        raise ConfigError(
            f"checkpoints.every_steps = {recipe.checkpoints.every_steps}: finished steps would be lost",
            "set it to 1, or drill another recipe",
        )
    rng = random.Random(seed)  # noqa: S311 - nothing is secret here
    left = _in_turn(rng, names, kills)
    runs = []
    while left:
        chosen, left = _fit(rng, recipe, left)
        if not chosen:
            raise ConfigError(
                f"no step of {recipe.optimization.steps} is free for {left[0]}",
                "drill a recipe with more steps and epochs",
            )
        runs.append(sorted(chosen, key=lambda strike: strike.step))
    return runs


def _in_turn(rng: random.Random, names: Collection[str], count: int) -> list[tuple[str, str]]:
    """`count` pairs of fault and phase: all faults in a random order, again and again.

    Each takes the phase that it struck least so far, and of several the one that all struck least.
    """
    pairs: list[tuple[str, str]] = []
    while len(pairs) < count:
        for name in rng.sample(sorted(names), len(names)):
            phases = rng.sample(FAULTS[name].phases, len(FAULTS[name].phases))
            struck = Counter(phase for _, phase in pairs)
            pairs.append((name, min(phases, key=lambda one: (pairs.count((name, one)), struck[one]))))
    return pairs[:count]


def _fit(
    rng: random.Random, recipe: Recipe, pairs: Sequence[tuple[str, str]]
) -> tuple[list[Strike], list[tuple[str, str]]]:
    """As many of the pairs as one run can take, each at a step of its own, and those that are left."""
    free = set(range(recipe.optimization.steps + 1))
    chosen: list[Strike] = []
    left: list[tuple[str, str]] = []
    for name, phase in pairs:
        taken = {strike.step for strike in chosen}
        steps = sorted(
            step
            for step in free & set(_steps(recipe, name, phase))
            if phase not in _SAVED or step + 1 not in taken
        )
        if len(chosen) == PER_RUN or not steps:
            left.append((name, phase))
            continue
        step = rng.choice(steps)
        free -= {step, step + 1} if phase in _SAVED else {step}
        chosen.append(Strike(name, phase, step, round(rng.random(), 3)))
    return chosen, left


def _steps(recipe: Recipe, fault: str, phase: str) -> Sequence[int]:
    """Where it can strike: of damage to a checkpoint only where the one before it is there, too."""
    last = recipe.optimization.steps
    match phase:
        case _ if phase == START:
            return [0]
        case "evaluation":
            return [*range(0, last, recipe.evaluation.every_steps), last]
        case _ if phase == BOUNDARY:
            epoch = recipe.data.train_mazes // recipe.optimization.mazes_per_step
            return range(epoch, last, epoch)
    return range(3, last + 1) if FAULTS[fault].may_lose or FAULTS[fault].amend else range(1, last + 1)
