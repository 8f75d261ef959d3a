"""Plays a split of a run under a label: seal, records, summary and manifest, in an order that lets a play be
interrupted anywhere and continued."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from training import lineage, recorded, seal
from training.environments import Task
from training.errors import ConfigError, DataError, SubstrateError
from training.evaluate import EvaluationSettings, Policy, Progress, play, read_records, summarize
from training.files import write_json
from training.locks import LockedError, locked


@dataclass(frozen=True)
class Play:
    """What is played, by whom and how. `sealed_as` is the candidate's name for the seal; `notes` go into the
    manifest beside the summary."""

    split: str
    label: str
    tasks: Sequence[Task]
    settings: EvaluationSettings
    sealed_as: str
    again: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)


def records_path(run_dir: Path, label: str) -> Path:
    """Where the records of an evaluation lie; its summary is beside them."""
    return run_dir / "evaluations" / f"{label}.jsonl"


def perform(
    run_dir: Path,
    what: Play,
    make_policy: Callable[[], Policy],
    on_progress: Callable[[Progress], None] | None = None,
    wait_s: float = 0,
) -> dict[str, Any]:
    """Play what is not played yet, and return the manifest's entry.

    A finished play is read, not repeated; `make_policy` is called only if something is to be asked, and
    before the seal is broken: a model that cannot be loaded or reached has seen nothing. Raises ConfigError
    where the seal refuses or the label holds something else, DataError where records were changed,
    SubstrateError where another process has played under the label for `wait_s`.
    """
    path = records_path(run_dir, what.label)
    with _alone(path, wait_s):
        if entry := finished(run_dir, what):
            return entry
        seal.require_allowed(run_dir, what.sealed_as, what.split, what.label, what.again)
        policy = make_policy()
        seal.check(run_dir, what.sealed_as, what.split, what.label, what.again, path)
        note = partial(seal.note_progress, run_dir, what.split, what.label, path)
        records = play(policy, what.tasks, what.settings, on_progress, path, note)
        seal.require_noted(run_dir, what.split, what.label, path)
        summary = summarize(records).to_json()
        write_json(path.with_suffix(".summary.json"), summary)
        lineage.record_evaluation(run_dir, what.label, path, {"split": what.split, **what.notes, **summary})
        seal.log(run_dir, what.sealed_as, what.split, what.label, path)
        return lineage.read(run_dir)["evaluations"][what.label]


@contextmanager
def _alone(path: Path, wait_s: float) -> Iterator[None]:
    """No other process plays into this file of records: two would append every episode twice."""
    lock = path.with_name(f".{path.stem}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(lock, wait_s))
        except LockedError:
            raise SubstrateError(
                f"{path.stem} is being played by another process",
                "wait for its end, and the same command shows what came of it",
            ) from None
        yield


def finished(run_dir: Path, what: Play) -> dict[str, Any] | None:
    """The manifest's entry of this very play, None when it is not finished. Errors as in `perform`.

    Its figures are taken from the records, whatever the manifest says.
    """
    manifest = lineage.read(run_dir)
    entry = manifest["evaluations"].get(what.label)
    if entry is None:
        return None
    if lacking := [name for name in ("split", "settings", "policy", "n") if name not in entry]:
        raise DataError(
            f"{what.label} is on record without {', '.join(lacking)}",
            "restore run.json, or choose another --name",
        )
    stated = (entry["split"], entry["settings"])
    if stated != (what.split, what.settings.digest):
        raise ConfigError(
            f"{what.label} is an evaluation of {entry['split']} by {entry['policy']} with other settings",
            "choose another --name",
        )
    path = records_path(run_dir, what.label)
    if entry["n"] < len(what.tasks) * what.settings.samples and recorded.begins_with(path, entry["records"]):
        return None  # more samples are wanted, and some may have been played
    recorded.is_finished(manifest, path)
    # A crash after the entry and before the seal's: says it again, which is harmless.
    seal.log(run_dir, what.sealed_as, what.split, what.label, path)
    return entry | summarize(read_records(path)).to_json()
