"""One training run, inside the cluster: `python -m training.run RUN_DIR` is the entrypoint of the Ray job.

The run folder holds the resolved recipe, the data and the manifest, written by whoever submitted it.
"""

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from training import lineage, recipe
from training.events import EventLog
from training.files import tree_digest

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
        events.emit("failed", message=_shortened(f"{type(error).__name__}: {error}"))
        raise SystemExit(1) from error
    lineage.update(
        run_dir,
        adapter={"folder": adapter.relative_to(run_dir).as_posix(), "digest": tree_digest(adapter)},
        finished=lineage.now(),
    )
    events.emit("finished", adapter=str(adapter.relative_to(run_dir)))


def _shortened(text: str) -> str:
    """Beginning and end: Ray puts the cause of an error last."""
    return text if len(text) <= 2000 else f"{text[:600]} [...] {text[-1400:]}"


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
