"""From run folders to a decision in each of them: read everything, decide, and only then write."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

from training import lineage
from training.errors import ConfigError, DataError, SkypodError, SubstrateError, visible
from training.files import write_atomic, write_json
from training.gate import page, snapshot
from training.gate.decision import Decision, Incumbent, decide
from training.gate.evidence import BASE, CANDIDATE, Evidence, check_comparable, read, unreadable

JSON, PAGE = "gate.json", "gate.html"
Replay = Callable[[Evidence, str, Sequence[str]], list[str]]
"""Plays some tasks of a split again with BASE, CANDIDATE or both of a run, and returns the tasks' digests."""


def judge(
    run_dirs: Sequence[Path],
    incumbent_dir: Path | None = None,
    show: Callable[[str], None] = lambda text: None,
    replay: Replay | None = None,
) -> tuple[Decision, dict[str, Any]]:
    """Decide on one run, or on several seeds of one recipe; returns the decision and what was written of it.

    Every run folder gets gate.json, gate.html and the section "gate" of its run.json. When anything of the
    evidence is refused nothing is written, and earlier decisions on all these runs are withdrawn: see
    `evidence.read` for what is raised. `replay` raises DataError where records are not what it sees, and
    ConfigError where it cannot play: an incumbent is then said not to have been played again. All of it looks
    at copies: whoever writes into the folders meanwhile changes nothing.
    """
    folders = [folder.resolve() for folder in run_dirs]
    if len(set(folders)) != len(folders):
        raise ConfigError("a run is named twice", "name each run once")
    for folder in folders:
        _require_run(folder)
    with ExitStack() as copies:
        return _judge(folders, incumbent_dir, show, replay, copies)


def _judge(
    folders: Sequence[Path],
    incumbent_dir: Path | None,
    show: Callable[[str], None],
    replay: Replay | None,
    copies: ExitStack,
) -> tuple[Decision, dict[str, Any]]:
    with _withdrawn_if_unsound(folders, but_for=SubstrateError):
        runs = [_read(folder, show, copies) for folder in folders]
    for first, other in combinations(runs, 2):
        check_comparable(first, other, seeds=True)
    serving, incumbent = None, None
    if incumbent_dir is not None:
        serving = _read(incumbent_dir.resolve(), show, copies)
        for run in runs:
            check_comparable(run, serving, seeds=False)
        incumbent = Incumbent(serving.run, serving.candidate, serving.played(CANDIDATE))
    _require_ended([*runs, *([serving] if serving else [])])
    again: dict[str, Any] = {"replayed": {}, "not_replayed": {}}
    if replay:
        again = _replay(replay, runs, serving, folders, show)
    with _withdrawn_if_unsound(folders):
        return _decide(folders, runs, incumbent, serving, again)


def _require_run(folder: Path) -> None:
    """ConfigError for a folder named by mistake: that is no reason to withdraw what others decided."""
    if not any((folder / name).exists() for name in (lineage.MANIFEST, JSON, PAGE)):
        raise ConfigError(f"{folder} holds no {lineage.MANIFEST}", "name the folder of a run: runs/<id>")


def _require_ended(runs: Sequence[Evidence]) -> None:
    """DataError while something is played that decides nothing: what was decided before still holds."""
    if going := [f"run {run.run!r}: {play}" for run in runs for play in run.unfinished]:
        raise DataError(
            visible("; ".join(going)), "nothing was decided; go on with the same `skypod evaluate` to its end"
        )


def _replay(
    replay: Replay,
    runs: Sequence[Evidence],
    serving: Evidence | None,
    folders: Sequence[Path],
    show: Callable[[str], None],
) -> dict[str, Any]:
    """Which tasks of whom were played again, and why the incumbent's were not."""
    split, replayed, left = runs[0].recipe.gate.split, {}, {}
    for run in runs:
        show(f"{run.run}: playing tasks again with base and adapter from disk")
        with _withdrawn_if_unsound(folders, but_for=ConfigError):
            replayed[run.run] = replay(run, split, (BASE, CANDIDATE))
    if serving:
        show(f"{serving.run}: playing tasks again with the incumbent's adapter from disk")
        try:
            replayed[serving.run] = replay(serving, split, (CANDIDATE,))
        except ConfigError as error:
            left[serving.run] = error.problem
    return {"replayed": replayed, "not_replayed": left}


def _decide(
    folders: Sequence[Path],
    runs: Sequence[Evidence],
    incumbent: Incumbent | None,
    serving: Evidence | None,
    again: dict[str, Any],
) -> tuple[Decision, dict[str, Any]]:
    decision = decide(runs[0].recipe.gate, [run.entrant() for run in runs], incumbent)
    written = {
        "decision": "passed" if decision.passed else "refused",
        "made": lineage.now(),
        **decision.to_json(),
        **again,
        "evidence": {run.run: run.to_json() for run in (*runs, *([serving] if serving else []))},
    }
    html = page.render(decision, written, {run.run: run.records for run in runs})
    try:
        for folder in folders:
            write_atomic(folder / PAGE, html)
            write_json(folder / JSON, written)
            lineage.update(folder, gate=written)
    except OSError as error:
        raise DataError(
            f"the decision cannot be written: {error}", "move away what is in that place, and decide again"
        ) from error
    return decision, written


def _read(folder: Path, show: Callable[[str], None], copies: ExitStack) -> Evidence:
    show(f"reading {visible(folder.name)}: drawing its splits again, replaying every episode")
    try:
        copy = copies.enter_context(snapshot.of(folder))
    except (OSError, RecursionError) as error:
        raise unreadable(folder, error) from error
    try:
        return read(copy)
    except SkypodError as error:
        said = (text.replace(str(copy), str(folder)) for text in (error.problem, error.remedy))
        raise type(error)(*said) from error


@contextmanager
def _withdrawn_if_unsound(
    folders: Sequence[Path], but_for: type[Exception] | tuple[()] = ()
) -> Iterator[None]:
    """Earlier decisions do not outlive the evidence that they rest on, whatever is wrong with it.

    DataError naming the files of those that cannot be withdrawn.
    """
    try:
        yield
    except but_for:
        raise
    except Exception as error:
        left = [line for folder in folders for line in _withdraw(folder)]
        if not left:
            raise
        problem = error.problem if isinstance(error, SkypodError) else repr(error)
        remedy = error.remedy if isinstance(error, SkypodError) else "nothing was decided"
        raise DataError(
            "\n  ! ".join([problem, *(f"an earlier decision may still stand: {line}" for line in left)]),
            f"{remedy}; then remove by hand what still stands, it rests on nothing",
        ) from error


def _withdraw(folder: Path) -> Iterator[str]:
    """Takes an earlier decision back; one line for each place where it could not."""
    for path in (folder / PAGE, folder / JSON):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            yield visible(f"{path} ({error.strerror})")
    path = folder / lineage.MANIFEST
    try:
        if os.path.lexists(path):
            lineage.remove(folder, "gate")
    except Exception as error:  # whatever it is that cannot be read may hold a decision
        yield visible(f"'gate' in {path} ({error!r})")
