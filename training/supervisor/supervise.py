"""The supervisor's loop: one attempt after another until the run has finished or is given up."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from training import attempts, events, lease, lineage
from training.errors import ConfigError, SubstrateError
from training.jobs import Job
from training.lease import Clock, Wait
from training.locks import LockedError
from training.recipe import Recipe
from training.supervisor import resume as resuming
from training.supervisor.cluster import Cluster
from training.supervisor.decisions import GiveUp, Past, Retry, lacking, next_move, overspent, require_price
from training.supervisor.failure import Failure, Kind, classify
from training.supervisor.record import Event, Record
from training.supervisor.resume import Accepted
from training.supervisor.tail import Tail

POLL_S = 1.0
STOPPED_S = 30.0
"""A job that was asked to stop and has not by then is left to the fence."""


@dataclass(frozen=True)
class Verdict:
    """How a supervised run ended; `problem` and `remedy` say why when it has not finished."""

    outcome: Literal["finished", "stopped", "given up"]
    problem: str = ""
    remedy: str = ""

    @property
    def finished(self) -> bool:
        return self.outcome == "finished"


def supervise(
    run_dir: Path,
    cluster: Cluster,
    recipe: Recipe,
    *,
    resume: str = "",
    usd_per_hour: float | None = None,
    show: Callable[[Event], None] = lambda event: None,
    clock: Clock = time.monotonic,
    wait: Wait = time.sleep,
) -> Verdict:
    """See the run through; `show` gets every event of its drivers and of the supervisor.

    `resume` names the request of a person to go on (see training.supervisor.resume.accept). Raises
    SubstrateError when the run is supervised already, ConfigError for a recipe that is not the run's,
    FencedError when another supervisor takes the run over. However this ends, a job that runs goes on, and
    the next supervisor follows it.
    """
    require_price(usd_per_hour)
    if recipe.recovery.max_usd is not None and usd_per_hour is None:
        raise ConfigError(
            f"recovery.max_usd = {recipe.recovery.max_usd:g} needs a price of the cluster",
            "say what an hour costs with --usd-per-hour, or leave the key out",
        )
    holder = lease.name_holder()
    taken = lease.take(run_dir, holder, recipe.recovery.lease_patience_s, clock, wait)
    try:
        record = Record(run_dir, taken, show)
        loop = _Loop(record, cluster, recipe, usd_per_hour, clock, wait, clock() - taken.spent_s)
        if loop.is_finished():
            return Verdict("finished")
        with lease.owned(run_dir, holder):
            accepted = resuming.accept(run_dir, recipe, resume)
        return loop.run(taken.token, accepted)
    finally:
        with suppress(OSError, LockedError):
            lease.release(run_dir, holder)


@dataclass(frozen=True)
class _Attempt:
    """`dead` are the nodes that were so before it began; `tail` reads what its driver says."""

    token: int
    job: str
    dead: frozenset[str]
    tail: Tail


@dataclass
class _Loop:
    record: Record
    cluster: Cluster
    recipe: Recipe
    usd_per_hour: float | None
    clock: Clock
    wait: Wait
    epoch: float
    """When supervision would have begun on this clock, had it never been interrupted."""
    failure: Failure | None = None

    @property
    def run_dir(self) -> Path:
        return self.record.run_dir

    @property
    def spent_s(self) -> float:
        return self.clock() - self.epoch

    def run(self, token: int, accepted: Accepted) -> Verdict:
        past = self.record.read()
        before = len(self.record.rows) - len(past)
        if past and "failure" in past[-1]:
            # An earlier supervisor saw it; this one was started to go on from there.
            self.failure = Failure.of(Kind(past[-1]["failure"]), past[-1]["message"])
        if accepted.changes:
            self.record.say("recipe changed", token, resuming.describe(accepted.changes))
        attempt: _Attempt | GiveUp | None = self._left_over(token, adopt=not accepted.changes)
        before_request = attempt if accepted.is_new else None
        while True:
            if attempt is None:
                attempt = self._begin(self.record.rows[before:])
            if isinstance(attempt, GiveUp):
                self.record.say("given up", token, attempt.problem)
                return Verdict("given up", attempt.problem, attempt.remedy)
            token, end = attempt.token, self._follow(attempt)
            self._close(attempt, end)
            if end is None:
                self.record.say("finished", token, f"by attempt {token}")
                return Verdict("finished")
            if isinstance(end, GiveUp):
                attempt = end
            elif attempt is before_request:
                # However that one ended, it was then that a person asked to go on.
                attempt = None
            elif end.kind is Kind.STOPPED:
                self.record.say("stopped", token, end.message)
                return Verdict("stopped", end.message, end.remedy)
            else:
                self.failure, attempt = end, None

    # Between attempts

    def _left_over(self, token: int, *, adopt: bool) -> _Attempt | None:
        """The attempt that an earlier supervisor left open; it is followed, whatever became of it."""
        row = self.record.rows[-1] if self.record.rows else {}
        if not token or row.get("token") != token or "ended" in row:
            return None
        job = self.cluster.job_id(token)
        attempt = _Attempt(token, job, frozenset(row.get("dead_before", ())), self._tail())
        if not adopt:
            # Its driver has the old recipe; the next token fences it.
            self._close(attempt, Failure.of(Kind.STOPPED, "the recipe was changed"))
            return None
        self.record.say("adopted", token, f"follows job {job} of an earlier supervisor")
        return attempt

    def _begin(self, past: list[dict[str, Any]]) -> _Attempt | GiveUp:
        """Wait as long as is due, then until the cluster is whole and the job submitted."""
        move = next_move(Past.of(past, self.failure), self.recipe.recovery)
        if isinstance(move, Retry):
            move = self._overspent() or move
        if isinstance(move, GiveUp):
            return move
        if move.after_s:
            self.record.say("waiting", 0, f"{move.after_s:g} s to the next attempt")
        until = self.clock() + move.after_s
        while self.clock() < until:
            if spent := self._tick():
                return spent
        return self._submit()

    def _submit(self) -> _Attempt | GiveUp:
        """Try until the job is there or `topology_timeout_s` is over."""
        limit_s = self.recipe.recovery.topology_timeout_s
        since, told, attempt = self.clock(), "", None
        while True:
            try:
                missing, dead = self._not_ready(attempt)
                if not missing:
                    attempt = attempt or self._open(dead)
                    if self.cluster.find(attempt.job) is None:
                        self.cluster.submit(attempt.token)
                    self.record.say("submitted", attempt.token, f"job {attempt.job}")
                    return attempt
            except SubstrateError as error:
                missing = error.problem
            except OSError as error:
                missing = f"{self.run_dir} cannot be written: {error}"
            if missing != told:
                told = missing
                self.record.say("waiting", attempt.token if attempt else 0, missing)
            gave_up = self._tick()
            if gave_up is None and self.clock() - since >= limit_s:
                gave_up = GiveUp(
                    f"no attempt could start for {limit_s:g} s: {missing}",
                    "see its pods and nodes; raise recovery.topology_timeout_s where nodes take longer",
                )
            if gave_up:
                if attempt:  # its job may be there although nobody heard so
                    self._close(attempt, self._stop(attempt, gave_up))
                return gave_up

    def _not_ready(self, attempt: _Attempt | None) -> tuple[str, frozenset[str]]:
        """Why no job can start now, and which nodes are dead; jobs of earlier attempts are told to end."""
        nodes = self.cluster.nodes()
        dead = frozenset(node.name for node in nodes if not node.alive)
        if missing := lacking(nodes, self.recipe.topology):
            return missing, dead
        left = [job for job in self.cluster.live() if not attempt or job != attempt.job]
        for job in left:
            self.cluster.ask_to_stop(job)
        return f"{', '.join(left)} has to end first" if left else "", dead

    def _open(self, dead: frozenset[str]) -> _Attempt:
        """Begin an attempt: the token that is issued now fences every driver before it."""
        token = self.record.next_token()
        while self.cluster.find(self.cluster.job_id(token)) is not None:
            # The cluster remembers a job of a run that had this name before.
            token = self.record.next_token()
        attempt = _Attempt(token, self.cluster.job_id(token), dead, self._tail())
        self.record.note(
            token,
            job=attempt.job,
            started=lineage.now(),
            from_step=attempts.newest_step(self.run_dir),
            dead_before=sorted(dead),
            spent_before_s=round(self.spent_s, 1),
        )
        return attempt

    def _tail(self) -> Tail:
        return Tail(self.run_dir / "events.jsonl")

    # During an attempt

    def _follow(self, attempt: _Attempt) -> Failure | GiveUp | None:
        """Until the attempt has ended: None when the run has finished, else why it has not."""
        recovery = self.recipe.recovery
        heard = answered = self.clock()
        while True:
            if self._listen(attempt):
                heard = self.clock()
            try:
                job = self.cluster.find(attempt.job)
                answered = self.clock()
            except SubstrateError as error:
                # As long as the driver is heard it goes on, and so do we.
                if self.clock() - max(heard, answered) >= recovery.head_grace_s:
                    return Failure.of(Kind.HEAD_LOST, error.problem)
            else:
                if job is None:
                    why = f"the head does not know job {attempt.job}: it is a new one"
                    return self._ended(attempt, Failure.of(Kind.HEAD_LOST, why))
                if job.ended:
                    return self._ended(attempt, self._why(attempt, job))
            silent_s = self.clock() - heard
            if silent_s >= recovery.stall_s:
                return self._stop(attempt, Failure.of(Kind.STALLED, f"no event for {silent_s:.0f} s"))
            if spent := self._tick():
                return self._stop(attempt, spent)

    def _listen(self, attempt: _Attempt) -> bool:
        """Show what the driver said since the last call; whether it said anything."""
        said = [
            event
            for event in attempt.tail.new()
            if event.get("attempt") == attempt.token and event["event"] != "supervisor"
        ]
        for event in said:
            self.record.show(event)
        return bool(said)

    def _ended[End](self, attempt: _Attempt, end: End) -> End | None:
        """A driver that published its adapter has succeeded, whatever ended it then."""
        self._listen(attempt)
        return None if self.is_finished() else end

    def is_finished(self) -> bool:
        return "finished" in lineage.read(self.run_dir)

    def _why(self, attempt: _Attempt, job: Job) -> Failure:
        """The driver's last word is in the run's events, or in its log where the disk was full."""
        log = events.parse(self._save_log(attempt).splitlines())
        told = [*events.read(self.run_dir / "events.jsonl"), *log]
        failed = [e for e in told if e["event"] == "failed" and e.get("attempt") == attempt.token]
        dead: set[str] = set()
        with suppress(SubstrateError):
            dead = {node.name for node in self.cluster.nodes() if not node.alive} - attempt.dead
        return classify(failed[-1] if failed else None, job, sorted(dead))

    def _save_log(self, attempt: _Attempt) -> str:
        """The log lies with the head and goes with it; what can be had is kept with the run."""
        try:
            text = self.cluster.log(attempt.job)
        except SubstrateError:
            return ""
        path = self.run_dir / "logs" / f"attempt-{attempt.token}.log"
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return text

    def _stop[End](self, attempt: _Attempt, end: End) -> End | None:
        """Have the job ended, and wait for that a while; the fence holds what does not end."""
        until = self.clock() + STOPPED_S
        with suppress(SubstrateError):
            self.cluster.ask_to_stop(attempt.job)
            while self.clock() < until:
                job = self.cluster.find(attempt.job)
                if job is None or job.ended:
                    break
                self._tick()
        self._save_log(attempt)
        return self._ended(attempt, end)

    def _close(self, attempt: _Attempt, end: Failure | GiveUp | None) -> None:
        facts: dict[str, Any] = {"outcome": "finished"}
        if isinstance(end, GiveUp):
            facts = {"outcome": "stopped", "message": end.problem}
        elif end is not None:
            outcome = "stopped" if end.kind is Kind.STOPPED else "failed"
            facts = {"outcome": outcome, "failure": end.kind.value, "message": end.message}
        row = next(row for row in self.record.rows if row.get("token") == attempt.token)
        self.record.note(
            attempt.token,
            ended=lineage.now(),
            seconds=round(self.spent_s - row.get("spent_before_s", self.spent_s), 1),
            to_step=attempts.newest_step(self.run_dir),
            **facts,
        )
        if isinstance(end, Failure):
            self.record.say("failed", attempt.token, f"{end.kind}: {end.message}")

    def _tick(self) -> GiveUp | None:
        """Let a moment pass and show that this supervisor lives; the budget when it is used up."""
        self.wait(POLL_S)
        self.record.beat(self.spent_s)
        return self._overspent()

    def _overspent(self) -> GiveUp | None:
        return overspent(self.recipe.recovery, self.spent_s, self.usd_per_hour)
