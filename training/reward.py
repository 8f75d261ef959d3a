"""Named, versioned reward functions. A name in a recipe or record always means the same arithmetic.

`training.audits.reward` plays scripted adversaries against each of them.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from training.errors import ConfigError


class Played(Protocol):
    """What a reward may look at: a `Game` or its `EpisodeResult`."""

    @property
    def solved(self) -> bool: ...

    @property
    def format_ok(self) -> float: ...


@dataclass(frozen=True)
class Reward:
    """Paid once, at the end of an episode: `pays` says for what, `lowest` and `highest` bound how much."""

    name: str
    pays: str
    lowest: float
    highest: float
    score: Callable[[Played], float]

    def __call__(self, played: Played) -> float:
        return self.score(played)


SOLVE_FORMAT_V1 = Reward(
    "solve-format-v1",
    "0.8 for a solved task plus 0.2 times the share of well-formed turns",
    lowest=0.0,
    highest=1.0,
    score=lambda played: 0.8 * played.solved + 0.2 * played.format_ok,
)

REWARDS: dict[str, Reward] = {reward.name: reward for reward in (SOLVE_FORMAT_V1,)}
DEFAULT = SOLVE_FORMAT_V1.name


def named(name: str) -> Reward:
    """The reward function of this name."""
    if name not in REWARDS:
        near = difflib.get_close_matches(name, REWARDS, n=1, cutoff=0.0)
        raise ConfigError(
            f"unknown reward {name!r}", f"did you mean {near[0]!r}? Known: {', '.join(REWARDS)}"
        )
    return REWARDS[name]
