"""What a supervisor writes: its lease's beat, the attempts in the manifest, and its own events."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from training import attempts, lease, lineage
from training.events import EventLog
from training.lease import Lease
from training.locks import LockedError
from training.supervisor import resume as resuming

Event = dict[str, Any]


class Record:
    """All of it is written as the lease's holder, and raises FencedError once another has the run.

    A full disk or a locked folder delays what is written and fails nothing: `beat` makes up for it.
    """

    def __init__(self, run_dir: Path, taken: Lease, show: Callable[[Event], None]):
        self.run_dir, self.show = run_dir, show
        self.rows: list[dict[str, Any]] = []
        """All attempts, as the manifest has them or will have them."""
        self._holder = taken.holder
        self._unsaved: dict[int, dict[str, Any]] = {}

    def read(self) -> list[dict[str, Any]]:
        """All attempts; returned are those since a person last resumed the run."""
        manifest = lineage.read(self.run_dir)
        self.rows = manifest[attempts.SECTION]
        return self.rows[resuming.attempts_before(manifest) :]

    def beat(self, spent_s: float) -> None:
        """Show that the supervisor lives; `spent_s` as in the lease."""
        with suppress(OSError, LockedError):
            lease.renew(self.run_dir, self._holder, spent_s)
            self._save()

    def next_token(self) -> int:
        """Raises OSError where the lease cannot be written."""
        return lease.next_token(self.run_dir, self._holder)

    def note(self, token: int, **facts: Any) -> None:
        """Add facts to an attempt."""
        row = next((row for row in self.rows if row.get("token") == token), None)
        if row is None:
            row = {"token": token}
            self.rows.append(row)
        row.update(facts)
        self._unsaved.setdefault(token, {}).update(facts)
        with suppress(OSError, LockedError):
            self._save()

    def say(self, what: str, token: int, message: str) -> None:
        """Tell who follows the run; the events of supervisors are no sign of life of a driver."""
        facts = {"what": what, "message": message}
        self.show({"event": "supervisor", "attempt": token, **facts})
        with suppress(OSError):
            EventLog(self.run_dir / "events.jsonl", token, to_stdout=False).emit("supervisor", **facts)

    def _save(self) -> None:
        while self._unsaved:
            token, facts = next(iter(self._unsaved.items()))
            with lease.owned(self.run_dir, self._holder, wait_s=0.5):
                attempts.note(self.run_dir, token, **facts)
            del self._unsaved[token]
