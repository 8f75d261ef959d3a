"""A campaign: one uninterrupted run, then runs of the same recipe and seed under faults, and its report.

The report is written after every run, so an interrupted campaign leaves what it has found and goes on from
there; a run that was interrupted with it is made again.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rehearsal.drills import disk, findings
from rehearsal.drills.faults import FAULTS
from rehearsal.drills.findings import Found
from rehearsal.drills.plan import Strike
from rehearsal.drills.run import Course, Drill, Tell
from rehearsal.drills.site import Site
from rehearsal.drills.watching import lengths
from training import lineage
from training.errors import ConfigError, SubstrateError
from training.files import read_json, write_json
from training.recipe import Recipe

FILE = "drill.json"


class Campaign:
    """What was planned, and what was found so far."""

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        seed: int,
        plan: Sequence[Sequence[Strike]],
        without: Mapping[str, str],
    ):
        """`without`: faults that cannot be had on this machine, and why.

        Raises ConfigError where the folder holds another campaign.
        """
        self.path, self.name, self.recipe, self.plan = folder / FILE, folder.name, recipe, plan
        order: dict[str, Any] = {
            "recipe": recipe.model_dump(mode="json"),
            "seed": seed,
            "not_drilled": dict(without),
            "plan": [[asdict(strike) for strike in strikes] for strikes in plan],
        }
        self.found: dict[str, Any] = {"name": self.name, **order, "lengths": {}, "runs": []}
        if self.path.is_file():
            self.found = read_json(self.path)
            if changed := [key for key, value in order.items() if self.found[key] != value]:
                raise ConfigError(
                    f"{self.path} is of another campaign: its {', '.join(changed)} differ",
                    "choose another --name, or remove that folder",
                )

    @property
    def reference(self) -> str:
        """The id of the uninterrupted run."""
        return f"{self.name}-reference"

    @property
    def left(self) -> list[int]:
        """The numbers of the runs, from 0, that are not in the report."""
        done = {run["run"] for run in self.found["runs"]}
        return [number for number in range(len(self.plan)) if self.run(number) not in done]

    def run(self, number: int) -> str:
        return f"{self.name}-{number + 1}"

    def play_reference(self, site: Site, tell: Tell) -> str:
        """The uninterrupted run, unless it is there; how long it took, in words.

        Raises SubstrateError when it does not finish: nothing can be compared then.
        """
        if self.found["lengths"] and "finished" in lineage.read(site.run_dir(self.reference)):
            return "played before"
        course = self._perform(site, self.reference, (), tell)
        if not course.finished:
            raise SubstrateError(
                f"the run without faults did not finish: {course.verdict}",
                f"read {site.run_dir(self.reference)}/logs",
            )
        self.found["lengths"] = lengths(course.seen, self.recipe.optimization.steps)
        self.found["reference_s"] = course.seconds
        self._write()
        return f"{self.recipe.optimization.steps} steps"

    def play(self, site: Site, number: int, tell: Tell) -> Found:
        """One run under its faults; what came of them."""
        course = self._perform(site, self.run(number), self.plan[number], tell)
        found = findings.of_run(course, site.run_dir(course.run), site.run_dir(self.reference))
        self.found["runs"].append(found)
        self._write()
        return found

    def _perform(self, site: Site, run: str, strikes: Sequence[Strike], tell: Callable[..., None]) -> Course:
        shutil.rmtree(site.run_dir(run), ignore_errors=True)
        site.prepare(run, self.recipe)
        reference = site.run_dir(self.reference)
        drill = Drill(
            site, run, self.recipe, strikes, lengths=self.found["lengths"], reference=reference, tell=tell
        )
        with self._disk(site.run_dir(run), strikes):
            try:
                return drill.perform()
            finally:
                site.end(run)

    def _disk(self, run_dir: Path, strikes: Sequence[Strike]) -> AbstractContextManager[None]:
        full = any(FAULTS[strike.fault].needs == "disk" for strike in strikes)
        return disk.small(run_dir / "checkpoints") if full else nullcontext()

    def _write(self) -> None:
        where = lineage.environment()
        self.found |= {
            "written": lineage.now(),
            "machine": {key: where[key] for key in ("processor", "system", "python")},
            "summary": findings.summary(self.found["runs"]),
        }
        write_json(self.path, self.found)
