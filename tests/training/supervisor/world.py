"""A scripted Ray cluster in memory, and a clock that moves when somebody waits."""

import heapq
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training import lineage, recipe
from training.errors import SubstrateError
from training.events import EventLog
from training.jobs import Job, Node
from training.recipe import Recipe
from training.supervisor.supervise import Verdict, supervise

ROOT = Path(__file__).resolve().parents[3]
RECOVERY = {
    "recovery.stall_s": 300,
    "recovery.head_grace_s": 20,
    "recovery.topology_timeout_s": 600,
    "recovery.backoff_s": 10,
    "recovery.longest_backoff_s": 60,
    "recovery.max_attempts": 10,
    "recovery.max_fruitless_attempts": 3,
    "recovery.lease_patience_s": 30,
}


def load(**overrides: Any) -> Recipe:
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return recipe.load(ROOT / "recipes" / "maze-smoke.toml", RECOVERY | keys)


class World:
    """The run folder, the cluster and the time. `script` holds what each driver does, in order.

    An entry is called with the world and the token when the job is submitted; it schedules what happens.
    """

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.now, self._due, self._order = 5000.0, [], itertools.count()
        self.script: list[Callable[[World, int], None]] = []
        self.workers = {f"worker-{n}": Node(f"worker-{n}", True, 2) for n in range(3)}
        self.dead: list[Node] = []
        self.jobs: dict[str, Job] = {}
        self.asked_to_stop: list[str] = []
        self.stubborn = False
        self.answers = True
        self.submitted_at: list[float] = []
        self.shown: list[dict[str, Any]] = []
        if not (run_dir / "run.json").exists():
            lineage.write_json(run_dir / "run.json", {"attempts": [], "checkpoints": []})
        self.begin_with()

    def begin_with(self, **overrides: Any) -> None:
        """The recipe of the run is the smoke recipe with RECOVERY and these, `table__key=value`."""
        self.recipe: Recipe = load(**overrides)
        recipe.write_resolved(self.recipe, self.run_dir / "recipe.json")
        lineage.update(self.run_dir, recipe=self.recipe.model_dump(mode="json"))

    # Time

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, _, act = heapq.heappop(self._due)
            act()
        self.now = end

    def after(self, seconds: float, act: Callable[..., Any], *args: Any, **keys: Any) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), lambda: act(*args, **keys)))

    # What drivers and fate do

    def emit(self, token: int, event: str, **fields: Any) -> None:
        EventLog(self.run_dir / "events.jsonl", token, to_stdout=False).emit(event, **fields)

    def checkpoint(self, token: int, step: int) -> None:
        lineage.append(self.run_dir, "checkpoints", {"step": step})
        self.emit(token, "checkpoint", step=step)

    def fail(self, token: int, message: str, types: tuple[str, ...] = (), **more: Any) -> None:
        self.emit(token, "failed", message=message, types=list(types), **{"errnos": [], **more})
        self.end(token, "FAILED", 1)

    def finish(self, token: int) -> None:
        lineage.update(self.run_dir, finished="now")
        self.emit(token, "finished")
        self.end(token, "SUCCEEDED", 0)

    def end(self, token: int, status: str, exit_code: int | None, message: str = "it ended") -> None:
        name = self.job_id(token)
        if name in self.jobs:
            self.jobs[name] = Job(name, self.run_dir.name, status, message, exit_code)

    def kill_worker(self, name: str) -> None:
        node = self.workers.pop(name)
        self.dead.append(Node(node.name, False, node.gpus))

    def new_head(self) -> None:
        """It knows neither jobs nor nodes that died before it."""
        self.answers, self.jobs, self.dead = True, {}, []

    # Cluster

    def _answer(self) -> None:
        if not self.answers:
            raise SubstrateError("the Ray dashboard does not answer", "")

    def nodes(self) -> list[Node]:
        self._answer()
        return [Node("head", True, 0), *self.workers.values(), *self.dead]

    def job_id(self, token: int) -> str:
        return f"{self.run_dir.name}-{token}"

    def submit(self, token: int) -> None:
        self._answer()
        name = self.job_id(token)
        assert name not in self.jobs
        self.jobs[name] = Job(name, self.run_dir.name, "RUNNING", "", None)
        self.submitted_at.append(self.now)
        if self.script:
            self.script.pop(0)(self, token)

    def find(self, job: str) -> Job | None:
        self._answer()
        return self.jobs.get(job)

    def live(self) -> list[str]:
        self._answer()
        return [name for name, job in self.jobs.items() if not job.ended]

    def ask_to_stop(self, job: str) -> None:
        self._answer()
        self.asked_to_stop.append(job)
        if not self.stubborn:
            self.after(2, self.end, int(job.rpartition("-")[2]), "STOPPED", None)

    def log(self, job: str) -> str:
        self._answer()
        return "log of " + job

    # The subject

    def supervise(self, **keys: Any) -> Verdict:
        return supervise(
            self.run_dir,
            self,
            keys.pop("recipe", self.recipe),
            show=self.shown.append,
            clock=self.clock,
            wait=self.wait,
            **keys,
        )

    def attempts(self) -> list[dict[str, Any]]:
        return lineage.read(self.run_dir)["attempts"]

    def said(self, what: str) -> list[str]:
        return [e["message"] for e in self.shown if e["event"] == "supervisor" and e["what"] == what]


def success(world: World, token: int) -> None:
    world.after(10, world.checkpoint, token, 2)
    world.after(20, world.finish, token)


def failure(message: str = "wrong", *types: str, at: float = 5, step: int = 0, **more: Any):
    """A driver that writes the checkpoint of `step` where one is given, then fails."""

    def script(world: World, token: int) -> None:
        if step:
            world.after(at / 2, world.checkpoint, token, step)
        world.after(at, world.fail, token, message, types, **more)

    return script


LOST = ("RayActorError", "ray.exceptions.ActorDiedError", "ray.exceptions.RayActorError")


def lost(step: int = 0):
    return failure(*LOST, step=step)
