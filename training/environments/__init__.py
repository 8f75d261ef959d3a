"""The kinds of tasks that can be trained on, by name; docs/how-to/add-an-environment.md shows how to add one.

Only the environment that is asked for is imported.
"""

import difflib
from dataclasses import fields
from importlib import import_module
from typing import Any

from training.environments.base import Environment, Observation, Task, World
from training.environments.game import EpisodeResult, Game, Outcome
from training.errors import ConfigError

__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "EpisodeResult",
    "Game",
    "Observation",
    "Outcome",
    "Task",
    "World",
    "named",
]

ENVIRONMENTS: dict[str, str] = {
    "maze": "training.environments.maze:MazeEnvironment",
    "maze-visgym": "training.environments.visgym:VisGymEnvironment",
    "counting": "training.environments.counting:CountingEnvironment",
}
"""Name -> "module:Class"."""


def named(name: str, **options: Any) -> Environment:
    """The environment of this name with these options; ConfigError for a name or option that is not there."""
    if name not in ENVIRONMENTS:
        near = difflib.get_close_matches(name, ENVIRONMENTS, n=1, cutoff=0.0)
        raise ConfigError(
            f"unknown environment {name!r}", f"did you mean {near[0]!r}? Known: {', '.join(ENVIRONMENTS)}"
        )
    module, _, cls = ENVIRONMENTS[name].partition(":")
    environment: type[Environment] = getattr(import_module(module), cls)
    known = [field.name for field in fields(environment)]
    if unknown := sorted(options.keys() - set(known)):
        raise ConfigError(
            f"environment {name!r} has no option {unknown[0]!r}",
            f"its options are: {', '.join(known) or 'none'}",
        )
    return environment(**options)
