"""The Ray cluster as the supervisor sees it."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from training import jobs
from training.jobs import Endpoint, Job, Node


class Cluster(Protocol):
    """What a supervisor asks of the cluster. Every method raises SubstrateError when its head is silent."""

    def nodes(self) -> Sequence[Node]:
        """The nodes that the head knows, dead ones included."""

    def submit(self, token: int) -> None:
        """Start the driver of `token` as job `job_id(token)`."""

    def job_id(self, token: int) -> str:
        """The id of the job of `token`, whether there is one or not."""

    def find(self, job: str) -> Job | None:
        """A job; None when this head does not know it."""

    def live(self) -> Sequence[str]:
        """The jobs of this run that have not ended."""

    def ask_to_stop(self, job: str) -> None:
        """Have a job ended, without waiting for that."""

    def log(self, job: str) -> str:
        """The whole log of a job."""


@dataclass(frozen=True)
class RayCluster:
    """The cluster behind a dashboard. `endpoint` is asked each time: a new head may have a new address.

    `entrypoint` is the driver's command; the run's folder, as the head sees it, and the token come after it.
    """

    endpoint: Callable[[], Endpoint]
    entrypoint: str
    run_dir: Path

    @property
    def run(self) -> str:
        return self.run_dir.name

    def nodes(self) -> list[Node]:
        return jobs.nodes(self.endpoint())

    def submit(self, token: int) -> None:
        command = f"{self.entrypoint} {shlex.quote(str(self.run_dir))} {token}"
        jobs.submit(self.endpoint(), run=self.run, entrypoint=command, attempt=token)

    def job_id(self, token: int) -> str:
        return jobs.job_id(self.run, token)

    def find(self, job: str) -> Job | None:
        return jobs.find(self.endpoint(), job)

    def live(self) -> list[str]:
        return [job.job for job in jobs.listing(self.endpoint()) if job.run == self.run and not job.ended]

    def ask_to_stop(self, job: str) -> None:
        jobs.ask_to_stop(self.endpoint(), job)

    def log(self, job: str) -> str:
        return jobs.log(self.endpoint(), job)
