"""Whether seal, manifest and folder tell one story of who played what: what one hides, another shows."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from training import seal

UNVERIFIED = "unverified"
"""Under which all endpoints that nobody could verify are sealed; their evaluations name the address."""


def faults(folder: Path, manifest: Mapping[str, Any], sealed: Collection[str]) -> Iterator[str]:
    """One sentence for each thing that no run writes; `sealed` are the digests of all sealed tasks."""
    plays, started = manifest.get(seal.PLAYS, []), manifest.get(seal.STARTED, [])
    for section, entries in ((seal.PLAYS, plays), (seal.STARTED, started)):
        for label, times in Counter(entry["label"] for entry in entries).items():
            if times > 1:
                yield f"{label} is {times} times in {section}"
    begun = {(entry["label"], entry["candidate"], entry["split"]) for entry in started}
    evaluations = manifest["evaluations"]
    for play in plays:
        label, candidate, split = play["label"], play["candidate"], play["split"]
        if (label, candidate, split) not in begun:
            yield f"{label} was finished by {candidate} on {split}, but never begun"
        policy = evaluations.get(label, {}).get("policy", candidate)
        if policy != candidate and not (candidate == UNVERIFIED and policy.startswith(UNVERIFIED)):
            yield f"{label} was played by {policy}, the seal says {candidate}"
    known = evaluations.keys() | {entry["label"] for entry in started}
    for path in sorted((folder / "evaluations").glob("*.jsonl")):
        if path.stem not in known and (found := len(_digests(path) & set(sealed))):
            yield f"evaluations/{path.name} holds {found} sealed tasks of a play that is not on record"


def _digests(path: Path) -> set[str]:
    found = set()
    for line in path.read_bytes().splitlines():
        try:
            found.add(json.loads(line)["digest"])
        except (ValueError, LookupError, TypeError):
            continue  # the last line of a play that was cut off
    return found
