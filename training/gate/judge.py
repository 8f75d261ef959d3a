"""From run folders to a decision in each of them: read everything, decide, and only then write."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

from training import lineage
from training.errors import ConfigError, DataError, SkypodError, visible
from training.files import write_atomic, write_json
from training.gate import page
from training.gate.decision import Decision, Incumbent, decide
from training.gate.evidence import CANDIDATE, Evidence, check_comparable, read

JSON, PAGE = "gate.json", "gate.html"


def judge(
    run_dirs: Sequence[Path],
    incumbent_dir: Path | None = None,
    show: Callable[[str], None] = lambda text: None,
    replay: Callable[[Evidence], list[str]] | None = None,
) -> tuple[Decision, dict[str, Any]]:
    """Decide on one run, or on several seeds of one recipe; returns the decision and what was written of it.

    Every run folder gets gate.json, gate.html and the section "gate" of its run.json. When anything of the
    evidence is refused nothing is written, and earlier decisions on all these runs are withdrawn: see
    `evidence.read` for what is raised. `replay` plays some tasks of a run again, returns their digests, and
    raises where its records are not what it sees.
    """
    folders = [folder.resolve() for folder in run_dirs]
    if len(set(folders)) != len(folders):
        raise ConfigError("a run is named twice", "name each run once")
    with _withdrawn_if_unsound(folders):
        runs = [_read(folder, show) for folder in folders]
    replayed = {}
    for run in runs if replay else ():
        show(f"{run.run}: playing tasks again with base and adapter from disk")
        with _withdrawn_if_unsound(folders, but_for=ConfigError):
            replayed[run.run] = replay(run)
    for first, other in combinations(runs, 2):
        check_comparable(first, other, seeds=True)
    serving, incumbent = None, None
    if incumbent_dir is not None:
        serving = _read(incumbent_dir.resolve(), show)
        for run in runs:
            check_comparable(run, serving, seeds=False)
        incumbent = Incumbent(serving.run, serving.candidate, serving.played(CANDIDATE))
    with _withdrawn_if_unsound(folders):
        return _decide(runs, incumbent, serving, replayed)


def _decide(
    runs: Sequence[Evidence],
    incumbent: Incumbent | None,
    serving: Evidence | None,
    replayed: dict[str, list[str]],
) -> tuple[Decision, dict[str, Any]]:
    decision = decide(runs[0].recipe.gate, [run.entrant() for run in runs], incumbent)
    written = {
        "decision": "passed" if decision.passed else "refused",
        "made": lineage.now(),
        **decision.to_json(),
        "replayed": replayed,
        "evidence": {run.run: run.to_json() for run in (*runs, *([serving] if serving else []))},
    }
    html = page.render(decision, written, {run.run: run.records for run in runs})
    try:
        for run in runs:
            write_atomic(run.folder / PAGE, html)
            write_json(run.folder / JSON, written)
            lineage.update(run.folder, gate=written)
    except OSError as error:
        raise DataError(
            f"the decision cannot be written: {error}", "move away what is in that place, and decide again"
        ) from error
    return decision, written


def _read(folder: Path, show: Callable[[str], None]) -> Evidence:
    show(f"reading {folder.name}: drawing its splits again, replaying every episode")
    return read(folder)


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
        if os.path.lexists(path) and "gate" in lineage.read(folder):
            with lineage.changing(folder) as manifest:
                manifest.pop("gate")
    except Exception as error:  # whatever it is that cannot be read may hold a decision
        yield visible(f"'gate' in {path} ({error!r})")
