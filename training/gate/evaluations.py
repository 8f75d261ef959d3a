"""Every evaluation on record, taken only whole: file, manifest, seal and records have to say the same.

What decides are six of them; the others are looks that could have been chosen instead, or show how a
checkpoint was. One rule for all leaves no kind of entry to hide a play in.
"""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from training import recorded, seal
from training.errors import ConfigError, DataError, SkypodError
from training.evaluate import EvaluationRecord, EvaluationSettings, read_records, summarize
from training.files import file_digest, read_json
from training.gate import ledger
from training.gate.decision import Look

if TYPE_CHECKING:
    from training.gate.evidence import Evidence

BASE, CANDIDATE = seal.BASELINE, seal.FINAL
_DECIDING = {seal.label(name, split): (name, split) for split in seal.SEALED for name in (BASE, CANDIDATE)}
_OF_A_FILE = re.compile(r"[a-z0-9-]+-[0-9a-f]{8}")
"""What `skypod evaluate` calls the split of a user's file."""


class _GoesOnError(SkypodError):
    """A play of what is not sealed goes on: what was on record of it is still there."""


def read(evidence: "Evidence") -> None:
    """Fills the records of what decides and the further looks; what is wrong goes to the problems."""
    manifest = evidence.manifest
    rows = {split: evidence.rows.get(split, ()) for split in seal.SEALED}
    evidence.problems += ledger.faults(evidence.folder, manifest, rows)
    found = {}
    for at in dict.fromkeys((*_DECIDING, *manifest["evaluations"])):
        try:
            found[at] = take(evidence, at)
        except _GoesOnError as error:
            evidence.unfinished.append(error.problem)
        except SkypodError as error:
            evidence.problems.append(error.problem)
    evidence.records = {at: found[at] for at in _DECIDING if at in found}
    plays = {play["label"]: play for play in manifest.get(seal.PLAYS, [])}
    begun = [play for play in manifest.get(seal.STARTED, []) if play["label"] not in plays]
    empty = {play["label"] for play in begun if not _holds_records(evidence, play["label"])}
    for play in (*plays.values(), *begun):
        if play["label"] not in _DECIDING:
            records = found.get(play["label"])
            # Several episodes of a task cannot be paired with one: such a look counts, whatever it showed.
            if records and {record.key for record in records} != evidence.keys(play["split"]):
                records = None
            anywhere = play["label"] in empty
            evidence.looks.append(
                Look(play["candidate"], play["label"], play["split"], play["again"], records, anywhere)
            )
    for number, one in enumerate(seal.continued(manifest), 1):
        if one["lost"]:  # what was there before has been seen, and is played anew
            label = f"{one['label']}, begun anew: continuation {number}"
            anywhere = one["label"] in empty
            evidence.looks.append(Look(one["candidate"], label, one["split"], None, None, anywhere))


def _holds_records(evidence: "Evidence", at: str) -> bool:
    """Without any, only the seal says which split was played."""
    path = evidence.folder / "evaluations" / f"{at}.jsonl"
    return path.is_file() and bool(read_records(path))


def take(evidence: "Evidence", at: str) -> list[EvaluationRecord]:
    """The records of one evaluation. DataError unless all that is noted of it agrees with them, and of what
    decides with the run as well."""
    manifest = evidence.manifest
    entry = manifest["evaluations"].get(at)
    play = next((play for play in manifest.get(seal.PLAYS, []) if play["label"] == at), None)
    if at in _DECIDING:
        name, split = _DECIDING[at]
        policy = evidence.base if name == BASE else evidence.candidate
        if entry is None or play is None:
            raise DataError(f"{at} is not finished: {split} was not played to its end by {policy}")
        if entry.get("temperature") or entry["samples"] != 1:
            raise DataError(
                f"{at} is of {entry['samples']} samples at temperature "
                f"{entry.get('temperature') or 0:g}, and cannot decide; greedy play of each task once can"
            )
    else:
        split, policy = entry["split"], entry["policy"]
        if split in seal.SEALED and play is None:
            raise DataError(f"{at} played {split} past its seal")
    return _records(evidence, at, split, policy, entry, play)


def _records(
    evidence: "Evidence",
    at: str,
    split: str,
    policy: str,
    entry: Mapping[str, Any],
    play: Mapping[str, Any] | None,
) -> list[EvaluationRecord]:
    """The records of an evaluation of a split by a policy. DataError unless nothing says otherwise."""
    path = evidence.folder / "evaluations" / f"{at}.jsonl"
    noted = {"manifest": entry} | ({"seal": play} if play else {})
    if not path.is_file():
        raise DataError(f"{at} is on record, and its file {path.name} is gone")
    digest = file_digest(path)
    for of, said in noted.items():
        if digest != said["records"]:
            if play is None and split not in seal.SEALED and recorded.begins_with(path, said["records"]):
                raise _GoesOnError(f"{at} is unfinished: more samples of {split} are being played")
            raise DataError(
                f"{path.name} was changed: it is {digest[:16]}, the {of} noted {said['records'][:16]}"
            )
    records = read_records(path)
    for of, said in noted.items():
        name = said["policy"] if of == "manifest" else said["candidate"]
        if not ledger.is_by(policy, name):
            raise DataError(f"{at} is of another policy: the {of} says {name}, this run's is {policy}")
        if said["split"] != split:
            raise DataError(f"{at} is of {said['split']} as the {of} says, not of {split}")
    _require_rules(evidence, at, policy, entry, records)
    _require_tasks(evidence, at, split, entry["samples"], records)
    summary, beside = summarize(records).to_json(), path.with_suffix(".summary.json")
    for name, value in summary.items():
        if not _alike(entry.get(name), value):
            raise DataError(f"{at} is on record with {name} {entry.get(name)}, its episodes give {value}")
    if beside.is_file() and not _alike(read_json(beside), summary):
        raise DataError(f"{beside.name} is not what the episodes of {at} give")
    return records


def _require_rules(
    evidence: "Evidence", at: str, policy: str, entry: Mapping[str, Any], records: list[EvaluationRecord]
) -> None:
    """The recipe's rules and, but for what the entry says of sampling, greedy play of each task once."""
    rules, samples = evidence.recipe.environment, entry["samples"]
    if type(samples) is not int:  # True is 1 as well
        raise DataError(f"{at} is on record with {samples!r} samples, which is no number of them")
    try:
        settings = EvaluationSettings(
            rules.make(),
            max_turns=rules.max_turns,
            reward=rules.reward,
            policy=policy,
            temperature=entry.get("temperature") or 0.0,
            seed=entry.get("seed") or 0,
            samples=samples,
        )
    except ConfigError as error:
        raise DataError(f"{at} is on record with {error.problem}") from None
    if odd := [record for record in records if not settings.made(record)]:
        one, how = odd[0], f"at temperature {settings.temperature:g}" if settings.temperature else "greedily"
        raise DataError(
            f"{at} was not played by {policy}, {how}, by the recipe's rules and this version of Skypod: "
            f"{len(odd)} episodes, the first by {one.policy} in {one.max_turns} turns of {one.environment} "
            f"{one.options} for {one.reward}, settings {one.settings}, {settings.digest} expected"
        )


def _require_tasks(
    evidence: "Evidence", at: str, split: str, samples: int, records: list[EvaluationRecord]
) -> None:
    """The split's tasks as it shows them, each as often as the entry says; a user's file is not at hand."""
    if split not in evidence.rows and split not in seal.SEALED:
        if not _OF_A_FILE.fullmatch(split):
            raise DataError(f"{at} is of {split!r}, which is no split of a run and no file's")
        return
    rows, keys = evidence.rows.get(split, ()), [record.key for record in records]
    if len(keys) != len(rows) * samples or set(keys) != evidence.keys(split, samples):
        known = len({row["digest"] for row in rows} & {record.digest for record in records})
        raise DataError(f"{at} holds {len(keys)} episodes, of {known} of the {len(rows)} tasks of {split}")
    shown = {row["digest"]: row["task"] for row in rows}
    if odd := [record.digest for record in records if record.task != shown[record.digest]]:
        raise DataError(f"{at} shows {len(odd)} tasks otherwise than {split} does, {odd[0]} first")


def _alike(stated: Any, found: Any) -> bool:
    """Sums of another order, or of another machine, differ in their last digits."""
    if isinstance(found, dict):
        return (
            isinstance(stated, dict)
            and stated.keys() == found.keys()
            and all(_alike(stated[key], found[key]) for key in found)
        )
    if isinstance(found, float):
        return isinstance(stated, int | float) and math.isclose(stated, found, abs_tol=1e-9)
    return stated == found
