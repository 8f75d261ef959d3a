"""What an environment is: tasks as data, and worlds in which they are played.

An environment is a frozen dataclass whose fields are its options. It names everything that differs between
kinds of tasks; turns, scores, records, splits and audits are the same for all of them.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

PLAIN, BIGGER, MIRRORED, RECOLOURED = "plain", "bigger", "mirrored", "recoloured"


class Task(Protocol):
    """One thing to solve: validated data, with all that is needed to show it.

    Digests name content, not colours. A layout is the part of a task that could be learnt by heart (a maze's
    walls) without the question asked of it (start and goal); canonical digests are equal for tasks that are
    rotations or reflections of each other.
    """

    @property
    def digest(self) -> str: ...

    @property
    def layout_digest(self) -> str: ...

    @property
    def canonical_digest(self) -> str: ...

    @property
    def canonical_layout_digest(self) -> str: ...

    def to_json(self) -> dict[str, Any]:
        """What `Environment.load` reads."""
        ...


@dataclass(frozen=True)
class Observation:
    """What a policy is shown: a picture, uint8 [height, width, 3], and words.

    Pictures of ours have sides that are multiples of 32; a model's processor rescales all others.
    """

    image: np.ndarray
    text: str = ""


class World(Protocol):
    """One task being played. Only actions change it; what it says of itself needs no knowledge of rewards.

    An action replaces what it changes, so that a shallow copy is played apart.
    """

    @property
    def over(self) -> bool:
        """Whether an action has ended it."""
        ...

    @property
    def solved(self) -> bool: ...

    def observe(self) -> Observation: ...

    def act(self, action: str) -> bool:
        """Does one of the environment's actions; whether that changed anything but `over`."""
        ...

    def best_action(self) -> str:
        """What an oracle would do now."""
        ...


@dataclass(frozen=True)
class Environment(ABC):
    """One kind of task under one choice of options."""

    name: ClassVar[str]
    actions: ClassVar[tuple[str, ...]]
    """Every action there is, as the text that a policy writes."""
    reminder: ClassVar[str] = ""
    """The words shown after an answer that was no action."""

    @property
    def options(self) -> dict[str, Any]:
        """The fields as plain values: `named(name, **options)` gives an equal environment."""
        return asdict(self)

    @abstractmethod
    def load(self, data: Mapping[str, Any]) -> Task:
        """The task of `Task.to_json`. Raises DataError for anything that cannot be played and solved."""

    @abstractmethod
    def draw(self, rng: random.Random, variant: str = PLAIN) -> Task:
        """A new task, a function of `rng` alone; `variant` is PLAIN, BIGGER or RECOLOURED."""

    @abstractmethod
    def mirrored(self, task: Any) -> Task:
        """The mirror image of a task."""

    def draw_digests(self, seeds: Sequence[str]) -> Sequence[tuple[str, str, str, str]]:
        """Of what `draw` gives for each seed: digest, layout, canonical and canonical layout digest.

        For very many tasks; an environment that draws all of them at once is much faster.
        """
        tasks = (self.draw(random.Random(seed)) for seed in seeds)  # noqa: S311 (a replayable draw)
        return [
            (task.digest, task.layout_digest, task.canonical_digest, task.canonical_layout_digest)
            for task in tasks
        ]

    def published(self) -> Sequence[tuple[str, Task]]:
        """The fixed test as (where it comes from, task); empty: the test is drawn from a fixed seed."""
        return ()

    @abstractmethod
    def optimal_turns(self, task: Any) -> int:
        """Fewest turns that solve the task."""

    @abstractmethod
    def parse(self, answer: str) -> str | None:
        """The one of `actions` that an answer takes, or None when it takes none."""

    @abstractmethod
    def world(self, task: Any) -> World:
        """The task, untouched."""

    def replay(self, task: Any) -> World:
        """As `world`, for going through recorded actions where software of a cluster may be missing."""
        return self.world(task)
