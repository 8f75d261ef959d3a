"""The sealed splits: each is played once per candidate, and every play is on record in the run manifest.

Someone who may look at a test as often as they like will pass it once. So a play is noted before its first
question (`check`) and after its last answer (`log`); a second one of the same candidate needs a reason, which
stays beside it for every reader. The run's own play of its base gives that reason itself.
"""

import hashlib
import unicodedata
from pathlib import Path
from typing import Any

from training import lineage
from training.errors import ConfigError, DataError
from training.files import Appended, file_digest, read_whole, starting_lines, whole_lines, write_atomic

SEALED = ("test", "test-512", "ood")
PLAYS, STARTED = "test_plays", "test_started"
"""Sections of the manifest: finished plays {candidate, split, label, records (SHA-256 of the file), played,
again}, and all that were begun {candidate, split, label, started, again}; `again` is a reason or null.

What was begun also holds `reached` and `noted`, number and digest of the records that its file has had, and
where it was gone on with, or began with records, `continued` [{at, records, reached}]: records that were as
noted then, and that had been noted."""


BASELINE, FINAL = "baseline", "final"
"""When a run plays the sealed splits itself, before and after its training: what is compared."""
OWN = "the run's own play of its base, with the engine that plays the adapter"
"""Why a run plays its base although someone did before it was trained."""


LOCAL = ("base:", "adapter:")
"""How the names of policies begin that a run played from its own files."""


def label(when: str, split: str) -> str:
    """The label of a run's play of a sealed split, BASELINE or FINAL; the published test adds nothing."""
    return when if split == "test" else f"{when}-{split}"


OF_THE_BASE = frozenset(label(BASELINE, split) for split in SEALED)
DECIDING = OF_THE_BASE | {label(FINAL, split) for split in SEALED}
"""The labels of a run's own plays of the sealed splits."""


def is_reason(text: Any) -> bool:
    """Whether a reader sees words: spaces, marks and the letters that show nothing are none."""
    return isinstance(text, str) and any(
        one.isalnum() and "FILLER" not in unicodedata.name(one, "") for one in text
    )


def check(
    run_dir: Path,
    candidate: str,
    split: str,
    label: str,
    again: str | None = None,
    records: Path | None = None,
) -> None:
    """Allow a play under `label` and note that it begins; call it before anything is asked.

    An unfinished play may be continued under its label with what was noted of its `records`; what the file
    holds beside that is cut off, and where what was noted was changed all is: whoever deletes or exchanges
    what was lost and plays it again has looked twice. A base's play of which nothing was ever noted takes
    what it finds, which may be another run's, and notes how many; no other begins with any: DataError. Raises
    ConfigError when the label has a finished play, or the candidate a finished or begun one elsewhere and
    `again` gives no reason. Other splits than the sealed ones may be played freely.
    """
    if split not in SEALED:
        return
    if records is not None and records.is_symlink() and not records.exists():
        raise DataError(f"{records} is a link that leads nowhere", "remove it: records are made there")
    with lineage.changing(run_dir) as manifest:
        entry = _allowed(manifest, candidate, split, label, again)
        manifest.setdefault(PLAYS, [])
        started = manifest.setdefault(STARTED, [])
        begins, noted = entry not in started, entry.get("noted", "")
        had_any = noted or any(one["reached"] for one in entry.get("continued", []))
        takes_over = label in OF_THE_BASE and not had_any
        keeps = not begins and not takes_over
        # Read once: what is noted has to be what was looked at.
        found = _state(_keep_noted(records, noted) if keeps else _lines(records))
        held = found["reached"]
        if begins and held and not takes_over:
            raise DataError(
                f"{label} holds {held} records of {split} already, and never began as a play of it",
                "move its file away; only the plays of a base are taken over from another run",
            )
        if begins:
            started.append(entry)
        if held or not begins:
            one = {"at": lineage.now(), "records": held, "reached": entry.get("reached", 0)}
            entry.setdefault("continued", []).append(one)
        entry |= found


def note_progress(run_dir: Path, split: str, label: str, records: Path, appended: Appended) -> None:
    """Note the records that a play that was begun has written; DataError where it did not begin with those
    noted before, or its file holds anything else: once noted, a continuation would take it."""
    if split not in SEALED:
        return
    written = {"reached": appended.lines, "noted": appended.after}
    with lineage.changing(run_dir) as manifest:
        for entry in manifest[STARTED]:
            if entry["label"] == label:
                if entry.get("noted", "") != appended.before or _state(_lines(records)) != written:
                    raise DataError(
                        f"the records of {label} were changed while it was played",
                        "leave its file alone, and start the play again",
                    )
                entry |= written


def _lines(records: Path | None) -> bytes:
    """The records that a file holds. A last line that was cut off is none: the play takes it away."""
    return whole_lines(read_whole(records)) if records is not None and records.is_file() else b""


def _state(content: bytes) -> dict[str, Any]:
    """Number and digest of records; no digest where there are none."""
    return {
        "reached": content.count(b"\n"),
        "noted": hashlib.sha256(content).hexdigest() if content else "",
    }


def _keep_noted(records: Path | None, noted: str) -> bytes:
    """Cut off what was not noted, or everything where what was noted is not there any more; what is left.
    What a link leads to stays as it is."""
    if records is None:
        return b""
    # What a crash in here left: it holds sealed tasks, and nobody could say of which play.
    for left in records.parent.glob(f".{records.name}.{'?' * 8}"):
        if left.is_file() or left.is_symlink():
            left.unlink()
    if not records.is_file():
        return b""
    content = read_whole(records)
    kept = starting_lines(content, noted) or b""
    if len(kept) < len(content):
        write_atomic(records, kept)
    return kept


def continued(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Every time that a play was gone on with, as {candidate, split, label, at, records, reached, lost};
    `lost` is true where records that had been there were gone: that is a look of its own."""
    kept = ("at", "records", "reached")
    return [
        {key: play[key] for key in ("candidate", "split", "label")}
        | {key: one[key] for key in kept}
        | {"lost": one["records"] < one["reached"]}
        for play in manifest.get(STARTED, [])
        for one in play.get("continued", [])
    ]


def require_allowed(run_dir: Path, candidate: str, split: str, label: str, again: str | None = None) -> None:
    """Raise what `check` would, and note nothing: for asking before a player is made."""
    if split in SEALED:
        _allowed(lineage.read(run_dir), candidate, split, label, again)


def _allowed(
    manifest: dict[str, Any], candidate: str, split: str, label: str, again: str | None
) -> dict[str, Any]:
    """The entry of a play that is begun, or that may begin."""
    if again is not None and not is_reason(again):
        raise ConfigError(
            f"the reason for playing a sealed split again is empty: {again!r}", "say why in words: --again"
        )
    finished, started = manifest.get(PLAYS, []), manifest.get(STARTED, [])
    for play in finished:
        if play["label"] == label:
            raise ConfigError(
                f"{label} holds a finished play of {split} by {play['candidate']}, of {play['played']}",
                "read its records, or give a repeat a label of its own",
            )
    for play in started:
        if play["label"] == label:
            if (play["candidate"], play["split"]) == (candidate, split):
                return play
            raise ConfigError(
                f"{label} belongs to {play['candidate']} on {play['split']}, begun {play['started']}",
                "choose another label",
            )
    earlier = _of(started, candidate, split)
    if earlier and again is None and label in OF_THE_BASE:
        again = OWN
    if earlier and again is None:
        ended = next((play for play in finished if play["label"] == earlier[0]["label"]), None)
        state = f"played at {ended['played']}" if ended else f"begun at {earlier[0]['started']}"
        raise ConfigError(
            f"{split} is sealed: {candidate} has {state} as {earlier[0]['label']!r}",
            "give a reason (--again REASON), which readers of the results will see"
            if ended
            else "continue that play under its label, or give a reason (--again REASON)",
        )
    # Line breaks and spaces of all kinds are typed without being seen; a reader is shown one line.
    words = None if again is None else " ".join(again.split())
    entry = {"candidate": candidate, "split": split, "label": label}
    return entry | {"started": lineage.now(), "again": words}


def require_noted(run_dir: Path, split: str, label: str, records: Path) -> None:
    """Raises DataError where a play that ends has other records than were noted as it was played: someone
    exchanged its file between two looks at it."""
    if split in SEALED:
        for entry in lineage.read(run_dir)[STARTED]:
            if entry["label"] == label and (unlike := unnoted(entry, file_digest(records))):
                raise DataError(unlike, "leave its file alone, and start the play again")


def unnoted(begun: dict[str, Any], records: str) -> str | None:
    """What is wrong with an entry of STARTED whose play ended with records of this digest, or None."""
    if begun.get("noted") == records:
        return None
    return f"{begun['label']} ended with other records than were noted as it was played"


def log(run_dir: Path, candidate: str, split: str, label: str, records: Path) -> None:
    """Note that the play under `label` is finished, with the digest of its records; its reason is `check`'s.

    Saying it twice is harmless. Raises DataError when the play was never begun, when its records are not
    those that were noted, or the label was finished with others.
    """
    if split not in SEALED:
        return
    entry = {"candidate": candidate, "split": split, "label": label, "records": file_digest(records)}
    with lineage.changing(run_dir) as manifest:
        finished = manifest.setdefault(PLAYS, [])
        for play in finished:
            if play["label"] == label:
                if entry.items() <= play.items():
                    return
                raise DataError(
                    f"{label} is sealed with records {play['records'][:16]} of {play['candidate']}, "
                    f"not {entry['records'][:16]} of {candidate}",
                    "the records were changed after the play; restore them",
                )
        begun = [play for play in manifest.get(STARTED, []) if play["label"] == label]
        if not begun or (begun[0]["candidate"], begun[0]["split"]) != (candidate, split):
            raise DataError(
                f"{label} was not begun as a play of {split} by {candidate}", "check the seal before a play"
            )
        if unlike := unnoted(begun[0], entry["records"]):
            raise DataError(unlike, "restore the records, or prepare a new run")
        finished.append(entry | {"played": lineage.now(), "again": begun[0]["again"]})


def plays(manifest: dict[str, Any], candidate: str, split: str) -> list[dict[str, Any]]:
    """The finished plays of a split by a candidate, oldest first; more than one is a repeat."""
    return _of(manifest.get(PLAYS, []), candidate, split)


def _of(entries: list[dict[str, Any]], candidate: str, split: str) -> list[dict[str, Any]]:
    return [entry for entry in entries if (entry["candidate"], entry["split"]) == (candidate, split)]
