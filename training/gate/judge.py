"""From run folders to a decision in each of them: read everything, decide, and only then write."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from training import lineage
from training.errors import ConfigError, SkypodError
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
    evidence is refused nothing is written, and an earlier decision on that run is withdrawn: see
    `evidence.read` for what is raised. `replay` plays some tasks of a run again, returns their digests, and
    raises where its records are not what it sees.
    """
    folders = [folder.resolve() for folder in run_dirs]
    if len(set(folders)) != len(folders):
        raise ConfigError("a run is named twice", "name each run once")
    runs = [_read(folder, show) for folder in folders]
    replayed = {}
    for run in runs if replay else ():
        show(f"{run.run}: playing tasks again with base and adapter from disk")
        with _withdrawn_if_unsound(run.folder):
            replayed[run.run] = replay(run)
    for other in runs[1:]:
        check_comparable(runs[0], other, seeds=True)
    serving, incumbent = None, None
    if incumbent_dir is not None:
        serving = _read(incumbent_dir.resolve(), show)
        for run in runs:
            check_comparable(run, serving, seeds=False)
        incumbent = Incumbent(serving.run, serving.candidate, serving.played(CANDIDATE))
    decision = decide(runs[0].recipe.gate, [run.entrant() for run in runs], incumbent)
    written = {
        "decision": "passed" if decision.passed else "refused",
        "made": lineage.now(),
        **decision.to_json(),
        "replayed": replayed,
        "evidence": {run.run: run.to_json() for run in (*runs, *([serving] if serving else []))},
    }
    html = page.render(decision, written, {run.run: run.records for run in runs})
    for run in runs:
        write_atomic(run.folder / PAGE, html)
        write_json(run.folder / JSON, written)
        lineage.update(run.folder, gate=written)
    return decision, written


def _read(folder: Path, show: Callable[[str], None]) -> Evidence:
    show(f"reading {folder.name}: drawing its splits again, replaying every episode")
    with _withdrawn_if_unsound(folder):
        return read(folder)


@contextmanager
def _withdrawn_if_unsound(folder: Path) -> Iterator[None]:
    """An earlier decision does not outlive the evidence that it rests on."""
    try:
        yield
    except SkypodError:
        if (folder / JSON).is_file():
            (folder / JSON).unlink()
            (folder / PAGE).unlink(missing_ok=True)
            with suppress(SkypodError), lineage.changing(folder) as manifest:
                manifest.pop("gate", None)
        raise
