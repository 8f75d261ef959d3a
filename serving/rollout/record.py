"""What a rollout has done so far: one file per rollout or rollback, replaced in one step after every step."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from serving.aliases import Aliases
from training.errors import DataError
from training.files import read_object, required, write_json
from training.lineage import now

FOLDER = "rollouts"
FILE = "rollout.json"
_ID = re.compile(r"[0-9]{4,}-.+")
_TYPES = {
    **dict.fromkeys(("id", "action", "run", "started", "failing", "outcome"), str),
    **dict.fromkeys(("before", "known", "steps"), dict),
}
PROMOTE, ROLL_BACK = "promote", "roll back"
LIVE, REFUSED, ROLLED_BACK, REPLACED = "live", "refused", "rolled back", "replaced"


@dataclass(frozen=True)
class Record:
    """One rollout or rollback of an adapter (None: of the base).

    `before` are the aliases when it began, `known` those that it wrote last; `steps` holds what each finished
    step found. `failing` is why the adapter is being taken back, from the moment of
    that verdict; `outcome` is "" until it has ended.
    """

    id: str
    action: str
    adapter: str | None
    run: str
    started: str
    before: Aliases
    known: Aliases
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    failing: str = ""
    outcome: str = ""

    @property
    def number(self) -> int:
        """Its place in the order in which they began."""
        return int(self.id.partition("-")[0])

    def done(self, step: str, found: dict[str, Any]) -> "Record":
        """The record with one more step."""
        return replace(self, steps={**self.steps, step: {"at": now(), **found}})

    def without(self, *steps: str) -> "Record":
        """The record in which these steps are to be done again."""
        return replace(self, steps={name: found for name, found in self.steps.items() if name not in steps})

    def save(self, state: Path) -> "Record":
        """Write it; returns itself."""
        write_json(self.folder(state) / FILE, asdict(self))
        return self

    def folder(self, state: Path) -> Path:
        """Where its evidence lies."""
        return state / FOLDER / self.id


def begin(
    state: Path, action: str, adapter: str | None, run: str, aliases: Aliases, outcome: str = ""
) -> Record:
    """A new record, saved. Its id tells the order in which they began."""
    number = 1 + max((one.number for one in read_all(state)), default=0)
    return Record(
        id=f"{number:04d}-{action.replace(' ', '-')}-{adapter or 'base'}",
        action=action,
        adapter=adapter,
        run=run,
        started=now(),
        before=aliases,
        known=aliases,
        outcome=outcome,
    ).save(state)


def read_all(state: Path) -> list[Record]:
    """All records, the oldest first; DataError for one that cannot be read."""
    return sorted(_read_all(state), key=lambda one: (one.number, one.id))


def newest(state: Path, adapter: str | None = None) -> Record | None:
    """The newest promotion, or the newest of one adapter."""
    found = [one for one in read_all(state) if one.action == PROMOTE and adapter in (None, one.adapter)]
    return found[-1] if found else None


def _read_all(state: Path) -> Iterator[Record]:
    for path in (state / FOLDER).glob(f"*/{FILE}"):
        try:
            yield _read(path)
        except (OSError, TypeError, DataError) as error:
            why = error.problem if isinstance(error, DataError) else error
            raise DataError(f"{path} is no record of a rollout ({why})", "move it away") from None


def _read(path: Path) -> Record:
    content = read_object(path)
    if set(content) != {each.name for each in fields(Record)} or content["id"] != path.parent.name:
        raise DataError("other fields than a rollout's")
    for name, kind in _TYPES.items():
        required(content, kind, name, source=Path(FILE))
    if content["adapter"] is not None:
        required(content, str, "adapter", source=Path(FILE))
    if not _ID.fullmatch(content["id"]):
        raise DataError(f"its id {content['id']!r} does not begin with a number")
    return Record(**content | {name: Aliases(**content[name]) for name in ("before", "known")})
