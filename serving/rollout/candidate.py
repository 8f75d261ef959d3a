"""What a rollout needs of an adapter: its folder, what speaks for it, and what to ask it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving import probe
from serving.adapter import Adapter, Limits
from serving.aliases import served_name
from serving.base import Base
from serving.client import ChatPolicy
from serving.probe import Probe, Reference
from serving.rollout.destination import Destination
from training.environments import Task
from training.errors import DataError
from training.evaluate import Conversation, EvaluationSettings


@dataclass(frozen=True)
class Questions:
    """What an adapter is asked, and under which rules.

    `canaries` are first questions to which the trainer's answers are known (`references`, within `tolerance`
    nats); `tasks` are held-out tasks, played under `settings`. Answers have at most `max_tokens` of
    `allowed_token_ids` (None: all).
    """

    canaries: Sequence[Conversation]
    references: Sequence[Reference]
    tolerance: float
    tasks: Sequence[Task]
    settings: EvaluationSettings
    max_tokens: int
    allowed_token_ids: Sequence[int] | None

    def policy(self, destination: Destination, name: str | None, **options: Any) -> ChatPolicy:
        """The player of an adapter, or of the base (None), at a destination."""
        return ChatPolicy(
            destination.url,
            served_name(destination.model_id, name),
            destination.access(name),
            max_tokens=self.max_tokens,
            allowed_token_ids=self.allowed_token_ids,
            **options,
        )

    def probe(self, destination: Destination, name: str) -> Probe:
        """Whether an adapter is served as it was trained; DataError without anything to compare with."""
        if not self.references:
            raise DataError(
                f"nothing is known of what {name} has to answer", "the run's training writes canaries.json"
            )
        with self.policy(destination, None) as base, self.policy(destination, name) as served:
            return probe.run(base, served, self.canaries, self.references, self.tolerance)


@dataclass(frozen=True)
class Candidate:
    """An adapter that may be promoted. `refused` says why its gate did not let it pass, "" when it did;
    `run_manifest` is run.json with that decision; `run` is the folder it is in."""

    adapter: Adapter
    folder: Path
    base: Base
    limits: Limits
    refused: str
    run: str
    run_manifest: bytes
    questions: Questions

    @property
    def name(self) -> str:
        return self.adapter.name
