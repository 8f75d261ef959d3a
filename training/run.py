"""One training run, inside the cluster: `python -m training.run RUN_DIR` is the entrypoint of the Ray job.

The run folder holds the resolved recipe, the data and the manifest, written by whoever submitted it.
"""

import importlib
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from training import exports, lineage, recipe
from training.events import EventLog

if TYPE_CHECKING:
    from training.skyrl.backend import Backend

SHARED_VARIABLE = "SKYPOD_SHARED"
"""Set in every container: where the shared file system is mounted."""


def main(run_dir: Path, backend: "Backend | None" = None) -> None:
    """Train, evaluate and export; every outcome is in the run folder when this returns or raises."""
    from training.skyrl import experiment
    from training.skyrl.backend import CUDA

    backend = backend or CUDA
    events = EventLog(run_dir / "events.jsonl")
    chosen = recipe.read_resolved(run_dir / "recipe.json")
    attempt = {"started": lineage.now(), "backend": backend.name, **lineage.environment()}
    lineage.append(run_dir, "attempts", attempt)
    events.emit("stage", name="cluster")
    try:
        _join(chosen, backend)
        adapter = experiment.run(chosen, run_dir, Path(os.environ[SHARED_VARIABLE]), backend, events)
    except BaseException as error:
        traceback.print_exc()
        events.emit("failed", message=explain(error))
        raise SystemExit(1) from error
    lineage.update(
        run_dir,
        adapter={"folder": adapter.relative_to(run_dir).as_posix(), "digest": exports.digest(adapter)},
        finished=lineage.now(),
    )
    events.emit("finished", adapter=str(adapter.relative_to(run_dir)))


def explain(error: BaseException) -> str:
    """What went wrong, without the traceback that Ray puts into an error's text, and which nodes died."""
    while isinstance(getattr(error, "cause", None), BaseException):
        error = error.cause  # of a RayTaskError
    text = f"{type(error).__name__}: {error}"
    if len(text) > 2000:
        text = f"{text[:600]} [...] {text[-1400:]}"  # others put the cause last, too
    died = _nodes_that_died()
    return f"{text} (Ray nodes that died: {', '.join(died)})" if died else text


def _nodes_that_died() -> list[str]:
    """Their names; workers elsewhere only see that a peer is gone."""
    import ray

    with suppress(Exception):  # a cluster that cannot be asked must not hide what went wrong
        return [node["NodeName"] for node in ray.nodes() if not node["Alive"]]
    return []


def _join(chosen: recipe.Recipe, backend: "Backend") -> None:
    """Connect to the cluster that started this job, and to no other."""
    import ray

    setup = backend.server_setup if chosen.rollout.engine == "skyrl-servers" else ""
    if setup:
        module, _, function = setup.rpartition(".")
        getattr(importlib.import_module(module), function)()
    runtime_env = {"worker_process_setup_hook": setup} if setup else None
    ray.init(address="auto", log_to_driver=True, runtime_env=runtime_env)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
