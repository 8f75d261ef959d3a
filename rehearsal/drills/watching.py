"""A run as its events tell it, each stamped by our own clock: the run's clock may be what is drilled."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rehearsal.drills.faults import BOUNDARY, START
from training.supervisor.tail import Tail


@dataclass(frozen=True)
class Seen:
    """`at`: seconds on the monotonic clock of whoever watches."""

    at: float
    event: dict[str, Any]

    def is_(self, name: str, /, **fields: Any) -> bool:
        return self.event["event"] == name and all(self.event.get(k) == v for k, v in fields.items())


@dataclass
class Watch:
    """Follows the events of one run from its beginning."""

    path: Path
    seen: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tail = Tail(self.path)

    def look(self) -> list[Seen]:
        """What was added since the last look."""
        now = time.monotonic()
        new = [Seen(now, event) for event in self._tail.new()]
        self.seen += new
        return new

    @property
    def attempt(self) -> int:
        """The attempt that spoke last, 0 before the first."""
        return next((s.event["attempt"] for s in reversed(self.seen) if not s.is_("supervisor")), 0)

    @property
    def finished_step(self) -> int:
        """The last step of which there is a checkpoint, by the run's own word."""
        return next((s.event["step"] for s in reversed(self.seen) if s.is_("checkpoint")), 0)

    @property
    def doing(self) -> str:
        """What the run does now: its phase and step, as announced last."""
        for seen in reversed(self.seen):
            match seen.event["event"]:
                case "phase":
                    return f"{seen.event['name']} {seen.event['step']}"
                case "evaluating":
                    return f"evaluation {seen.event['label']}"
                case "checkpoint" | "step":
                    return f"after {seen.event['event']} {seen.event['step']}"
                case "stage":
                    return f"start of {seen.event['name']}"
        return "nothing yet"


def phase_of(event: Mapping[str, Any], last_step: int) -> tuple[str, int] | None:
    """The phase and step that an event begins, None for any other event."""
    match event["event"]:
        case "stage" if event["name"] == "cluster":
            return START, 0
        case "phase":
            return event["name"], event["step"]
        case "checkpoint":
            return BOUNDARY, event["step"]
        case "evaluating" if event["finished"] == 0:
            label = event["label"]
            if label.startswith("dev-"):
                return "evaluation", int(label.removeprefix("dev-"))
            return "evaluation", 0 if label.startswith("baseline") else last_step
    return None


def lengths(seen: Iterable[Seen], last_step: int) -> dict[str, float]:
    """The median length of each phase in seconds: to the next event that is not of the same phase."""
    found: dict[str, list[float]] = {}
    begun: tuple[str, float] | None = None
    for one in seen:
        phase = phase_of(one.event, last_step)
        if (begun and not one.is_("evaluating")) or phase:
            if begun:
                found.setdefault(begun[0], []).append(one.at - begun[1])
            begun = (phase[0], one.at) if phase else None
    return {name: round(median(values), 3) for name, values in found.items()}
