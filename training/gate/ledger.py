"""Whether seal, manifest and folder tell one story of who played what: what one hides, another shows."""

import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from training import seal
from training.files import RepeatedKeyError, parse_json, whole_lines
from training.splits import Row

_RECORDS = re.compile(r"evaluations/(?:(?P<label>[^/]+)\.jsonl|\.(?P<cut>[^/]+)\.jsonl\.[a-z0-9_]{8})")
_LABEL = re.compile(r"[a-z0-9][a-z0-9.-]*")
_DIGEST = re.compile(rb'"(?:digest|canonical)"\s*:\s*"([0-9a-f]+)"')
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
UNVERIFIED = "unverified"
"""Under which all endpoints that nobody could verify are sealed; their evaluations name the address."""


def faults(folder: Path, manifest: Mapping[str, Any], rows: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """One sentence for each thing that no run writes; `rows` are those of the sealed splits."""
    plays, started = manifest.get(seal.PLAYS, []), manifest.get(seal.STARTED, [])
    yield from _malformed(seal.PLAYS, "played", [(play["label"], play) for play in plays])
    yield from _malformed(seal.STARTED, "started", [(play["label"], play) for play in started])
    yield from _malformed("evaluations", "played", list(manifest["evaluations"].items()))
    yield from _without_reason(started)
    yield from _not_continued(started)
    yield from _not_first(started)
    begun = {entry["label"]: entry for entry in started}
    ended = {play["label"] for play in plays}
    for play in plays:
        yield from _unlike(play, begun.get(play["label"]), manifest["evaluations"].get(play["label"]))
    for path in sorted((folder / "evaluations").rglob("*")):
        if path.is_file():
            yield from _hidden(path, path.relative_to(folder).as_posix(), begun, ended, rows)


def _is_time(text: Any) -> bool:
    """Whether a run writes the time so, and there is such a time."""
    if not (isinstance(text, str) and _TIME.fullmatch(text)):
        return False
    try:
        time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return False
    return True


def _malformed(section: str, when: str, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Entries of one section, by label. A label is a file's name, and could be a path or a line of ours;
    without times nobody can say which play was the first."""
    for label, times in Counter(label for label, _ in entries).items():
        if times > 1:
            yield f"{label} is {times} times in {section}"
    for label, entry in entries:
        if not _LABEL.fullmatch(label):
            yield f"{label!r} is in {section}, which is no label"
        if not _is_time(entry[when]):
            yield f"{label} is in {section} as {when} at {entry[when]!r}, which is no time"
        if section == "evaluations":
            continue
        if entry["split"] not in seal.SEALED:
            yield f"{label} is in {section} as a play of {entry['split']}, which is not sealed"
        if entry["again"] is not None and not seal.is_reason(entry["again"]):
            yield f"{label} is in {section} for a reason that says nothing: {entry['again']!r}"


def _not_continued(started: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How a play was gone on with is shown and counted, and has to be of its form."""
    for entry in started:
        for one in entry.get("continued", []):
            counts = [one[key] for key in ("records", "reached")]
            if not all(type(count) is int and count >= 0 for count in counts) or not _is_time(one["at"]):
                yield f"{entry['label']} was continued as no run writes it: {one}"


def _without_reason(started: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    seen = set()
    for entry in started:
        candidate, split = entry["candidate"], entry["split"]
        if (candidate, split) in seen and entry["again"] is None:
            yield f"{entry['label']} repeats a play of {split} by {candidate} without a reason"
        seen.add((candidate, split))


def _not_first(started: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What decides is the first play of a split, not the best of several: by its place and by its time; of
    the base the run's own."""
    told = set()
    for order in (started, sorted(started, key=lambda entry: entry["started"])):
        seen = set()
        for entry in order:
            late = entry["again"] or (entry["candidate"], entry["split"]) in seen
            seen.add((entry["candidate"], entry["split"]))
            # Whoever played the base before the run did has begun a look, which counts as any other.
            own = entry["label"] in seal.OF_THE_BASE and entry["again"] == seal.OWN
            if late and not own and entry["label"] in seal.DECIDING - told:
                told.add(entry["label"])
                yield f"{entry['label']} is a repeat, and cannot decide: only a first play of a split can"


def _unlike(
    play: Mapping[str, Any], begun: dict[str, Any] | None, entry: Mapping[str, Any] | None
) -> Iterator[str]:
    label, candidate, split = play["label"], play["candidate"], play["split"]
    if begun is None or (begun["candidate"], begun["split"]) != (candidate, split):
        yield f"{label} was finished by {candidate} on {split}, but never begun"
    elif unlike := seal.unnoted(begun, play["records"]):
        yield unlike
    elif begun["again"] != play["again"]:
        yield f"{label} was begun for another reason than it was finished for"
    elif play["played"] < begun["started"]:
        yield f"{label} was finished at {play['played']}, before it began at {begun['started']}"
    if entry is None:
        yield f"{label} was finished on {split}, but its evaluation is not on record"
    elif not is_by(entry["policy"], candidate):
        yield f"{label} was played by {entry['policy']}, the seal says {candidate}"
    elif entry["split"] != split:
        yield f"{label} played {entry['split']}, the seal says {split}"


def _hidden(
    path: Path,
    name: str,
    begun: Mapping[str, Mapping[str, Any]],
    ended: Collection[str],
    rows: Mapping[str, Sequence[Row]],
) -> Iterator[str]:
    """What a file holds of the sealed tasks has to be a play that was begun, of that split by that policy."""
    content, label = path.read_bytes(), _label_of(name, ended)
    entry = begun.get(label)
    if entry and label not in ended:
        content = whole_lines(content)  # it may have been cut off in its last line
    records, repeats = _records(content)
    if repeats:
        yield f"{name} holds {repeats} records that name something twice"
    # Turned or mirrored a task is as telling. A file of another form than records may hold tasks, too.
    read = {str(record[key]) for record in records for key in ("digest", "canonical") if key in record}
    held = read | {digest.decode() for digest in _DIGEST.findall(content)}
    sealed = {split: {row["digest"] for row in of} for split, of in rows.items()}
    tasks = held & set().union(*sealed.values())
    known = tasks | held & {row["canonical"] for of in rows.values() for row in of}
    if not known and not (entry and records):
        return
    if known - read:
        yield f"{name} holds {len(known - read)} sealed tasks that are in no record of it"
    if entry is None:
        yield f"{name} holds {len(tasks or known)} sealed tasks of a play that is not on record"
        return
    if strange := {record["digest"] for record in records} - sealed.get(entry["split"], set()):
        yield f"{name} holds {len(strange)} tasks that are not of {entry['split']}, as which it is sealed"
    policies = {str(record.get("policy")) for record in records}
    played = Counter(record["digest"] for record in records)
    if label not in ended and played.keys() == sealed[entry["split"]] and len(set(played.values())) == 1:
        yield (
            f"{name} holds every task of {entry['split']}, and no end of the play is on record: the command "
            "that played it enters it"
        )
    if others := {policy for policy in policies if not is_by(policy, entry["candidate"])}:
        yield f"{name} was played by {min(others)}, the seal says {entry['candidate']}"


def _label_of(name: str, ended: Collection[str]) -> str | None:
    """The play whose records a file holds. One that was killed while they were cut off has left what is
    kept beside them, until it goes on."""
    found = _RECORDS.fullmatch(name)
    if found is None or found["cut"] in ended:
        return None
    return found["label"] or found["cut"]


def is_by(policy: str, candidate: str) -> bool:
    """Whether a policy is sealed as this candidate."""
    return policy == candidate or (candidate == UNVERIFIED and policy.startswith(UNVERIFIED))


def _records(content: bytes) -> tuple[list[dict[str, Any]], int]:
    """The lines that name a task, and how many name something twice; the last may be of a play cut off."""
    found, repeats = [], 0
    for line in content.split(b"\n"):
        try:
            record = parse_json(line)
        except RepeatedKeyError:
            repeats += 1
        except (ValueError, RecursionError):
            continue
        else:
            if isinstance(record, dict) and isinstance(record.get("digest"), str):
                found.append(record)
    return found, repeats
