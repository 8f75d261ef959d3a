"""Whether seal, manifest and folder tell one story of who played what: what one hides, another shows."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from training import seal

_LABEL = re.compile(r"[a-z0-9][a-z0-9.-]*")
_DIGEST = re.compile(rb'"digest"\s*:\s*"([0-9a-f]+)"')
_DECIDING = {seal.label(when, split) for when in ("baseline", "final") for split in seal.SEALED}
UNVERIFIED = "unverified"
"""Under which all endpoints that nobody could verify are sealed; their evaluations name the address."""


def faults(folder: Path, manifest: Mapping[str, Any], sealed: Mapping[str, Collection[str]]) -> Iterator[str]:
    """One sentence for each thing that no run writes; `sealed` are the digests of the tasks by split."""
    plays, started = manifest.get(seal.PLAYS, []), manifest.get(seal.STARTED, [])
    for section, entries in ((seal.PLAYS, plays), (seal.STARTED, started)):
        for label, times in Counter(entry["label"] for entry in entries).items():
            if times > 1:
                yield f"{label} is {times} times in {section}"
        for entry in entries:
            if not _LABEL.fullmatch(entry["label"]):
                yield f"{entry['label']!r} is in {section}, which is no label"
            if entry["split"] not in seal.SEALED:
                yield f"{entry['label']} is in {section} as a play of {entry['split']}, which is not sealed"
    yield from _without_reason(started)
    yield from _not_first(started)
    begun = {entry["label"]: entry for entry in started}
    for play in plays:
        yield from _unlike(play, begun.get(play["label"]), manifest["evaluations"].get(play["label"]))
    for path in sorted((folder / "evaluations").rglob("*")):
        yield from _hidden(path, path.relative_to(folder).as_posix(), begun, sealed)


def _without_reason(started: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    seen = set()
    for entry in started:
        candidate, split, reason = entry["candidate"], entry["split"], entry["again"]
        if (candidate, split) in seen and not (isinstance(reason, str) and reason.strip()):
            yield f"{entry['label']} repeats a play of {split} by {candidate} without a reason"
        seen.add((candidate, split))


def _not_first(started: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What decides is the first play of a split, not the best of several."""
    seen = set()
    for entry in sorted(started, key=lambda entry: entry["started"]):
        deciding = entry["label"] in _DECIDING
        if deciding and (entry["again"] or (entry["candidate"], entry["split"]) in seen):
            yield f"{entry['label']} is a repeat, and cannot decide: only a first play of a split can"
        seen.add((entry["candidate"], entry["split"]))


def _unlike(
    play: Mapping[str, Any], begun: Mapping[str, Any] | None, entry: Mapping[str, Any] | None
) -> Iterator[str]:
    label, candidate, split = play["label"], play["candidate"], play["split"]
    if begun is None or (begun["candidate"], begun["split"]) != (candidate, split):
        yield f"{label} was finished by {candidate} on {split}, but never begun"
    elif begun["again"] != play["again"]:
        yield f"{label} was begun for another reason than it was finished for"
    if entry is None:
        yield f"{label} was finished on {split}, but its evaluation is not on record"
    elif not _is_by(entry["policy"], candidate):
        yield f"{label} was played by {entry['policy']}, the seal says {candidate}"
    elif entry["split"] != split:
        yield f"{label} played {entry['split']}, the seal says {split}"


def _hidden(
    path: Path, name: str, begun: Mapping[str, Mapping[str, Any]], sealed: Mapping[str, Collection[str]]
) -> Iterator[str]:
    """What a file holds of the sealed tasks has to be a play that was begun, of that split by that policy."""
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        yield f"{name} is no file of its own"
        return
    if path.is_dir():
        return
    content = path.read_bytes()
    found = _digests(content)
    # A file of another form than records may hold tasks, too.
    written = {digest.decode() for digest in _DIGEST.findall(content)}
    known = {digest for digests in sealed.values() for digest in digests} & (written | found.keys())
    if not known:
        return
    if known - found.keys():
        yield f"{name} holds {len(known - found.keys())} sealed tasks that are in no record of it"
    entry = begun.get(path.stem) if name == f"evaluations/{path.stem}.jsonl" else None
    if entry is None:
        yield f"{name} holds {len(known)} sealed tasks of a play that is not on record"
        return
    if strange := found.keys() - set(sealed.get(entry["split"], ())):
        yield f"{name} holds {len(strange)} tasks that are not of {entry['split']}, as which it is sealed"
    others = {policy for policy in found.values() if not _is_by(policy, entry["candidate"])}
    if others:
        yield f"{name} was played by {min(others)}, the seal says {entry['candidate']}"


def _is_by(policy: Any, candidate: str) -> bool:
    return policy == candidate or (candidate == UNVERIFIED and str(policy).startswith(UNVERIFIED))


def _digests(content: bytes) -> dict[str, str]:
    """The policy by task, of each line that has one; the last may be of a play that was cut off."""
    found = {}
    for line in content.split(b"\n"):
        try:
            record = json.loads(line)
            found[str(record["digest"])] = str(record.get("policy"))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
    return found
