"""Named, versioned reward functions. A name in a recipe or record always means the same arithmetic."""

import difflib
from collections.abc import Callable
from typing import Protocol

from training.errors import ConfigError


class Played(Protocol):
    """What a reward may look at: an `Episode` or its `EpisodeResult`."""

    @property
    def solved(self) -> bool: ...

    @property
    def format_ok(self) -> float: ...


Reward = Callable[[Played], float]


def solve_format_v1(played: Played) -> float:
    """0.8 for a solved maze plus 0.2 times the share of well-formed turns."""
    return 0.8 * played.solved + 0.2 * played.format_ok


REWARDS: dict[str, Reward] = {"solve-format-v1": solve_format_v1}
DEFAULT = "solve-format-v1"


def named(name: str) -> Reward:
    """The reward function of this name; it is paid once, at the end of an episode."""
    if name not in REWARDS:
        near = difflib.get_close_matches(name, REWARDS, n=1, cutoff=0.0)
        raise ConfigError(
            f"unknown reward {name!r}", f"did you mean {near[0]!r}? Known: {', '.join(REWARDS)}"
        )
    return REWARDS[name]
