"""Where drills take place: a Ray cluster that is up, and how a supervised run is started on it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client

from cdk_app import cluster, supervised
from rehearsal.drills import clock as drilled_clock
from rehearsal.drills.targets import Targets
from rehearsal.substrate import DRIVER
from stacks.environment import Environment
from stacks.manifests import supervisor
from stacks.outputs import Outputs
from training import jobs, prepare
from training.recipe import Recipe


@dataclass(frozen=True)
class Site:
    """`shared` is the folder that pods see as /shared; `cluster` names the RayCluster."""

    api: client.ApiClient
    environment: Environment
    outputs: Outputs
    image: str
    cluster: str
    shared: Path

    def run_dir(self, run: str) -> Path:
        return self.shared / "runs" / run

    def prepare(self, run: str, recipe: Recipe) -> Path:
        """A new run folder."""
        base = self.shared / recipe.policy.base_model
        prepare.prepare(recipe, self.run_dir(run), base_dir=base, image=self.image)
        return self.run_dir(run)

    def submit(self, run: str, recipe: Recipe, *, resume: str = "", clock: bool = False) -> None:
        """Apply the supervisor's Job, in place of the run's former one; it submits the driver.

        `clock`: both have a wall clock that can be moved (see rehearsal.drills.clock).
        """
        objects = supervisor.build(
            self.environment,
            self.outputs,
            image=self.image,
            run=run,
            recipe="\n".join(toml(recipe.model_dump(mode="json"))),
            cluster=self.cluster,
            entrypoint=DRIVER,
            resume=resume,
        )
        if clock:
            _give_clock(objects[-1], self.run_dir(run) / drilled_clock.FILE)
        supervised.delete(self.api, self.outputs.namespace, run)
        cluster.apply(self.api, objects)

    def verdict(self, run: str) -> str:
        """How the supervisor's Job ended, "finished" or "failed"; "" while it is active."""
        found = supervised.find(self.api, self.outputs.namespace, run)
        return "" if found is None or found.state == "active" else found.state

    def end(self, run: str) -> None:
        """Leave nothing of the run on the cluster: its supervisor first, which would start another job."""
        supervised.delete(self.api, self.outputs.namespace, run)
        ray = cluster.dashboard(self.api, self.outputs.namespace, self.cluster)
        for job in jobs.listing(ray):
            if job.run == run and not job.ended:
                jobs.stop(ray, job.job)

    def targets(self, run: str) -> Targets:
        return Targets(self.api, self.outputs.namespace, self.cluster, supervisor.job_name(run))


def _give_clock(job: dict[str, Any], file: Path) -> None:
    """Start a supervisor's Job, and the drivers that it submits, with the wall clock of `file`."""
    container = job["spec"]["template"]["spec"]["containers"][0]
    with_clock = f"python -m {drilled_clock.__name__} {file} "
    container["command"] = [*with_clock.split(), *container["command"][2:]]
    container["args"] = [
        with_clock + each.removeprefix("python -m ") if each == DRIVER else each for each in container["args"]
    ]


def toml(tree: Mapping[str, Any], table: str = "") -> Iterator[str]:
    """The lines of a TOML file with these values; None is left out, as it stands for a missing key."""
    tables = {key: value for key, value in tree.items() if isinstance(value, Mapping)}
    for key, value in tree.items():
        if value is not None and key not in tables:
            yield f"{key} = {json.dumps(value)}"
    for key, value in tables.items():
        name = f"{table}.{key}" if table else key
        yield f"[{name}]"
        yield from toml(value, name)
