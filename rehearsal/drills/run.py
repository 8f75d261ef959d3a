"""One supervised run, struck as planned while it runs, followed to its end."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rehearsal.drills.faults import FAULTS, Scene
from rehearsal.drills.plan import Strike
from rehearsal.drills.site import Site
from rehearsal.drills.watching import Seen, Watch, phase_of
from training.errors import SubstrateError
from training.recipe import Recipe

LOOK_S = 0.02
ASK_S = 1.0
FOUND_S = 30.0
LOST_S = 900.0
"""Without any event for so long the drill has found a run that hangs for good."""

Tell = Callable[[dict[str, Any]], None]


@dataclass
class Blow:
    """A strike that was carried out: when, in which attempt, while the run was doing what."""

    strike: Strike
    at: float
    attempt: int
    doing: str
    finished_step: int
    error: str = ""


@dataclass
class Course:
    """How a run went: what it said, what struck it, and how its supervisor's Job ended (`verdict`)."""

    run: str
    seen: list[Seen] = field(default_factory=list)
    blows: list[Blow] = field(default_factory=list)
    missed: list[Strike] = field(default_factory=list)
    seconds: float = 0.0
    verdict: str = ""

    @property
    def finished(self) -> bool:
        return self.verdict == "finished"


class Drill:
    """Carries out `strikes` on one run. `reference` is the uninterrupted run's folder."""

    def __init__(
        self,
        site: Site,
        run: str,
        recipe: Recipe,
        strikes: Sequence[Strike] = (),
        *,
        lengths: Mapping[str, float] | None = None,
        reference: Path | None = None,
        tell: Tell = lambda event: None,
    ):
        self._site, self._recipe, self._lengths, self._tell = site, recipe, lengths or {}, tell
        self._run_dir = site.run_dir(run)
        self._scene = Scene(site.targets(run), self._run_dir, reference or self._run_dir)
        self._watch = Watch(self._run_dir / "events.jsonl")
        self._pending = list(strikes)
        self._due: float | None = None
        self._clock = any(FAULTS[strike.fault].needs == "clock" for strike in strikes)
        self._resumes = 0
        self.course = Course(run, self._watch.seen)

    def perform(self) -> Course:
        """Submit the run and follow it until its supervisor's Job has ended, for good."""
        began = heard = time.monotonic()
        ask_at = 0.0
        self._site.submit(self.course.run, self._recipe, clock=self._clock)
        while not self.course.verdict:
            for seen in self._watch.look():
                heard = seen.at
                self._tell(seen.event)
                self._react(seen)
            now = time.monotonic()
            if self._due is not None and now >= self._due:
                self._strike(self._due)
            if now >= ask_at:
                ask_at = now + ASK_S
                self._end(self._site.verdict(self.course.run))
            if now - heard > LOST_S:
                self.course.verdict = f"lost: no event for {LOST_S:g} s while it did {self._watch.doing}"
            time.sleep(LOOK_S)
        self._watch.look()
        self.course.missed = self._pending
        self.course.seconds = round(time.monotonic() - began, 1)
        return self.course

    def _react(self, seen: Seen) -> None:
        if self._pending and self._due is None and self._is_over(seen):
            strike = self._pending[0]
            if phase_of(seen.event, self._recipe.optimization.steps) == (strike.phase, strike.step):
                self._due = seen.at + strike.fraction * self._lengths.get(strike.phase, 0.0)
        if self.course.blows and seen.is_("supervisor", what="failed"):
            blow = self.course.blows[-1]
            relieve = FAULTS[blow.strike.fault].relieve
            if relieve and seen.event["attempt"] == blow.attempt:
                relieve(self._scene)

    def _is_over(self, seen: Seen) -> bool:
        """Whether an event is of an attempt that the last fault has not doomed."""
        last = self.course.blows[-1] if self.course.blows else None
        return not last or not FAULTS[last.strike.fault].classes or seen.event["attempt"] > last.attempt

    def _strike(self, due: float) -> None:
        """A target that is not there, as a supervisor between two pods, is waited for."""
        strike, watch = self._pending[0], self._watch
        blow = Blow(strike, time.monotonic(), watch.attempt, watch.doing, watch.finished_step)
        try:
            FAULTS[strike.fault].strike(self._scene)
        except (SubstrateError, OSError) as error:
            if blow.at - due < FOUND_S:
                return
            blow.error = str(error)
        self._pending.pop(0)
        self._due = None
        self.course.blows.append(blow)
        self._tell({"event": "strike", "fault": strike.fault, "doing": blow.doing})

    def _end(self, verdict: str) -> None:
        """The Job has ended: for good, or until a person does what its message asks for."""
        amend = FAULTS[self.course.blows[-1].strike.fault].amend if self.course.blows else None
        if verdict == "failed" and amend and self._resumes < len(self.course.blows):
            self._resumes = len(self.course.blows)
            amend(self._scene)
            resume = f"drill-{self._resumes}"
            self._site.submit(self.course.run, self._recipe, resume=resume, clock=self._clock)
        else:
            self.course.verdict = verdict
