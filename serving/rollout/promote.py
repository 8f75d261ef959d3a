"""Promotes an adapter: validate, register, load, probe, play, canary, judge, full, retire.

Each step may be done twice, and what it found is on record before the next begins, so a promotion that was
cut off anywhere goes on when it is started again. Until `full`, the aliases name the old adapter as live.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from serving import adapter as adapters
from serving import aliases as files
from serving import manifest, store
from serving.aliases import Aliases, ReplacedError
from serving.rollout import record as records
from serving.rollout import rules
from serving.rollout.candidate import Candidate
from serving.rollout.record import LIVE, PROMOTE, REFUSED, REPLACED, ROLLED_BACK, Record
from serving.rollout.site import Site
from training.errors import ConfigError, DataError, SubstrateError
from training.evaluate import EvaluationRecord, play, read_records
from training.files import write_json
from training.locks import LockedError, locked

STEPS = ("validate", "register", "load", "probe", "play", "canary", "judge", "full", "retire")
# A server may have been started again in the meantime: what only it can tell is asked again.
# So is what a gate or a person may have said against it since.
_AGAIN = ("validate", "register", "load", "probe")
_ASKING = ("probe", "play", "canary", "judge")


def promote(site: Site, candidate: Candidate) -> Record:
    """Bring a candidate to all traffic, or go on doing so.

    Raises DataError when a step's verdict is against it: then it is withdrawn, and what was live serves on.
    Raises SubstrateError when something does not answer: nothing is lost, start it again. Raises
    ReplacedError when a rollback came first, ConfigError when another promotion is not finished.
    """
    folder = site.state / records.FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder, wait_s=0):
            return _Promotion(site, candidate).run()
    except LockedError:
        raise SubstrateError(
            f"another promotion runs in {site.state}",
            "wait for it, or stop it; `skypod rollback` works at any time",
        ) from None


class _Promotion:
    def __init__(self, site: Site, candidate: Candidate):
        self.site, self.candidate, self.name = site, candidate, candidate.name
        self.record = self._open()

    def run(self) -> Record:
        if self.record.outcome:
            self.site.tell(f"{self.name} is live already")
            for name in self.site.restore(files.read(self.site.aliases)):
                self.site.tell(f"{name} was lost and is loaded again")
            return self.record
        if not self.record.failing:
            self._require_same_tasks()
        try:
            if self.record.failing:
                self._take_back(self.record.failing)
            for step in STEPS:
                self._do(step)
        except ReplacedError:
            self._save(replace(self.record, outcome=REPLACED))
            raise
        except BaseException:
            self._suspend()
            raise
        return self._save(replace(self.record, outcome=LIVE))

    def _do(self, step: str) -> None:
        done = self.record.steps
        if step in done and (step not in _AGAIN or "full" in done):
            return
        self.site.tell(step)
        try:
            found = getattr(self, f"_{step}")()
        except (DataError, ConfigError) as error:
            if "full" in done:
                raise  # it is live; what is wrong with the rest is no verdict against it
            if step in _ASKING:
                self._require_loaded(error.problem)
            self._take_back(error.problem)
        else:
            self._save(self.record.done(step, found))

    # ---- the steps: each returns what it found

    def _validate(self) -> dict[str, Any]:
        one, place = self.candidate, self.site.folder(self.name)
        adapters.validate(one.folder, one.base, one.limits)
        if not place.exists():
            _, contents = manifest.read_folder(one.folder, one.limits.max_bytes)
            manifest.write_folder(place, contents)
        adapter = adapters.validate(place, one.base, one.limits)
        self._require_same_base(adapter.base_digest)
        return {"digest": adapter.digest, "base": adapter.base_digest, "rank": adapter.rank}

    def _register(self) -> dict[str, Any]:
        registry, one = self.site.registry, self.candidate
        uri = store.upload(self.site.folder(self.name), registry.s3, registry.bucket, registry.adapters)
        version = registry.register(one.adapter, uri, one.run_manifest, passed=not one.refused)
        if one.refused:
            raise DataError(f"its gate refused it: {one.refused}", "only what passed is promoted")
        self._require_approved()
        return {"uri": uri, "version": version.arn}

    def _load(self) -> dict[str, Any]:
        self.site.restore(self.record.known)
        self.site.load(self.name)
        return {"url": self.site.destination.url}

    def _probe(self) -> dict[str, Any]:
        found = self.candidate.questions.probe(self.site.destination, self.name)
        found.require()
        return found.to_json()

    def _play(self) -> dict[str, Any]:
        of_live = self._records_of("live", self.record.before.live)
        played = rules.compare(of_live, self._records_of("candidate", self.name))
        self._conclude("played", asdict(played), rules.worse_at_play(played, self.site.rules))
        return asdict(played)

    def _canary(self) -> dict[str, Any]:
        """Nobody else answers before the first promotion: then all of the traffic is the canary's."""
        self._require_ready()
        before = self.record.before
        share = self.site.rules.share if before.live else 1.0
        previous = None if before.previous == self.name else before.previous
        self._move(canary=self.name, canary_share=share, previous=previous)
        return {"share": share, "since": self.site.traffic.begin()}

    def _judge(self) -> dict[str, Any]:
        since, bounds = self.record.steps["canary"]["since"], self.site.rules
        live, canary = self.site.traffic.watch(
            self.record.before.live, self.name, since, bounds, self._was_replaced
        )
        files.require(self.site.aliases, self.record.known)
        found = {"live": asdict(live), "canary": asdict(canary)}
        self._conclude("traffic", found, rules.worse_at_work(live, canary, bounds))
        return found

    def _full(self) -> dict[str, Any]:
        self._require_ready()
        self._move(live=self.name, canary=None, canary_share=0.0, previous=self.record.before.live)
        return {"previous": self.record.before.live}

    def _retire(self) -> dict[str, Any]:
        self.site.publish(self.record.known, self.name)
        return {"unloaded": self.site.retire(self.record.known)}

    # ----

    def _was_replaced(self) -> bool:
        return files.read(self.site.aliases) != self.record.known

    def _require_same_tasks(self) -> None:
        """Raises ConfigError where this promotion has played others: that is no verdict against it."""
        wanted = {task.digest for task in self.candidate.questions.tasks}
        for label in ("live", "candidate"):
            path = self.record.folder(self.site.state) / f"{label}.jsonl"
            if path.exists() and not {one.digest for one in read_records(path)} <= wanted:
                raise ConfigError(
                    f"the promotion of {self.name} that was cut off played other tasks than these",
                    "go on with the --split that it began with, or end it: `skypod rollback`",
                )

    def _require_same_base(self, digest: str) -> None:
        """An engine has one base: that of what the aliases name."""
        for other in sorted(self.record.known.names - {self.name}):
            if self.site.base_of(other) != digest:
                raise ConfigError(
                    f"{self.name} is of another base than {other}, which the same engine serves",
                    "give it a place of its own: another environment, and another --state",
                )

    def _open(self) -> Record:
        """The record of a promotion that was cut off, of one that has ended well, or a new one."""
        state = self.site.state
        current, last = files.read(self.site.aliases), records.newest(state)
        if last and not last.outcome:
            if last.adapter == self.name and (last.failing or _wrote(last, current)):
                return self._seen(last, current)
            if current.canary == last.adapter:
                raise ConfigError(
                    f"the promotion of {current.canary} is not finished",
                    f"finish it: `skypod promote {current.canary}`; or end it: `skypod rollback`",
                )
            replace(last, outcome=REPLACED).save(state)
        if current.live == self.name:
            record = records.newest(state, self.name)
            return record or records.begin(state, PROMOTE, self.name, self.candidate.run, current, LIVE)
        return records.begin(state, PROMOTE, self.name, self.candidate.run, current)

    def _seen(self, record: Record, current: Aliases) -> Record:
        """The record with what it did last, where it was cut off before it could write that down."""
        record = replace(record, known=current)
        return record.done("full", {}) if current.live == self.name else record

    def _move(self, **to: Any) -> None:
        """Change the aliases from what this promotion knows, unless it did so just before it was cut off."""
        known = self.record.known
        if any(getattr(known, field) != value for field, value in to.items()):
            self._save(replace(self.record, known=files.change(self.site.aliases, known, **to)))
        self.site.publish(self.record.known, self.name)
        if trouble := self.site.traffic.trouble(self.record.known):
            raise SubstrateError(trouble, "see the gateway's log")

    def _take_back(self, reason: str) -> None:
        """Raises DataError with the reason, after the candidate is out of the aliases and unloaded."""
        self._save(replace(self.record, failing=reason))
        self.site.tell(f"against {self.name}: {reason}")
        self._end_canary()
        self.site.retire(self.record.known)
        outcome = ROLLED_BACK if "canary" in self.record.steps else REFUSED
        self._save(replace(self.record, outcome=outcome))
        raise DataError(
            f"{self.name} was not promoted: {reason}",
            f"{self.record.before.live or 'the base'} serves on; the evidence is in "
            f"{self.record.folder(self.site.state)}",
        )

    def _suspend(self) -> None:
        """Nobody judges the canary any more, so nobody shall meet it."""
        if self._end_canary():
            self._save(self.record.without("canary", "judge"))

    def _end_canary(self) -> bool:
        """Take the candidate out of the aliases; whether it was the canary in them."""
        ended = False
        while (current := files.read(self.site.aliases)).canary == self.name:
            before = self.record.before
            try:
                changed = files.change(
                    self.site.aliases, current, canary=None, canary_share=0.0, previous=before.previous
                )
            except ReplacedError:
                continue
            ended = True
            self._save(replace(self.record, known=changed))
            self.site.publish(changed, self.name)
        return ended

    def _records_of(self, label: str, name: str | None) -> list[EvaluationRecord]:
        """A play of the held-out tasks; episodes that are on record are not repeated."""
        asked, destination = self.candidate.questions, self.site.destination
        settings = replace(asked.settings, policy=files.served_name(destination.model_id, name))
        path = self.record.folder(self.site.state) / f"{label}.jsonl"
        with asked.policy(destination, name) as policy:
            return play(policy, asked.tasks, settings, records_path=path)

    def _conclude(self, what: str, found: dict[str, Any], reasons: Sequence[str]) -> None:
        write_json(self.record.folder(self.site.state) / f"{what}.json", found)
        if reasons:
            raise DataError("; ".join(reasons), "see the evidence of the rollout")

    def _require_ready(self) -> None:
        """Nobody is sent to an adapter that is not there, or not approved any more."""
        self._require_approved()
        self._require_loaded("it is about to take traffic")

    def _require_approved(self) -> None:
        self.site.require_approved(self.name)

    def _require_loaded(self, problem: str) -> None:
        """An engine that was started again knows none of its adapters; that says nothing of the candidate.

        Neither does a rollback that came in between and unloaded it.
        """
        files.require(self.site.aliases, self.record.known)
        needed = {self.name, self.record.before.live} - {None}
        if lost := needed - self.site.destination.loaded():
            raise SubstrateError(
                f"{self.site.destination.url} has lost {', '.join(sorted(lost))} ({problem})",
                f"it was started again, it seems; go on: `skypod promote {self.name}`",
            )

    def _save(self, record: Record) -> Record:
        self.record = record.save(self.site.state)
        return self.record


def _wrote(record: Record, current: Aliases) -> bool:
    """Whether the aliases are as this promotion left them, also if it was cut off right after that."""
    if current == record.known:
        return True
    written = (current.live, current.canary)
    ours = ((record.before.live, record.adapter), (record.adapter, None))
    return current.version == record.known.version + 1 and written in ours
