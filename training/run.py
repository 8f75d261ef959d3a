"""One attempt at a run, inside the cluster: `python -m training.run RUN_DIR [TOKEN]` starts the Ray job.

The run folder holds the resolved recipe, the data and the manifest, written by whoever submitted it. The
token is that of the run's lease: a driver that was replaced by a newer one is fenced.
"""

import errno
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training import attempts, exports, lease, lineage, recipe
from training.errors import SkypodError
from training.events import EventLog
from training.lease import FencedError

if TYPE_CHECKING:
    from training.skyrl.backend import Backend

SHARED_VARIABLE = "SKYPOD_SHARED"
"""Set in every container: where the shared file system is mounted."""


def main(run_dir: Path, backend: "Backend | None" = None, token: int = 0) -> None:
    """Train, evaluate and export; every outcome is in the run folder when this returns or raises.

    `token` is 0 where no supervisor submitted this. Raises SystemExit: 5 when a newer attempt has the run,
    and nothing is written from then on; else 1, with a `failed` event that says why.
    """
    from training.skyrl import experiment
    from training.skyrl.backend import CUDA

    backend = backend or CUDA
    fence = functools.partial(lease.held, run_dir, token)
    events = EventLog(run_dir / "events.jsonl", attempt=token)
    dead_before: set[str] = set()
    try:
        with fence():
            attempts.note(run_dir, token, backend=backend.name, **lineage.environment())
        events.emit("stage", name="cluster")
        chosen = recipe.read_resolved(run_dir / "recipe.json")
        _join(chosen, backend)
        dead_before = dead_nodes()
        shared = Path(os.environ[SHARED_VARIABLE])
        adapter = experiment.run(chosen, run_dir, shared, backend, events, fence=fence)
        folder = adapter.relative_to(run_dir).as_posix()
        with fence():
            lineage.update(
                run_dir,
                adapter={"folder": folder, "digest": exports.digest(adapter)},
                finished=lineage.now(),
            )
        events.emit("finished", adapter=folder)
    except BaseException as error:
        traceback.print_exc()
        chain = causes(error)
        if any(isinstance(each, FencedError) for each in chain):
            raise SystemExit(FencedError.exit_code) from error
        with suppress(OSError):  # a full disk; the job's log has it by then
            events.emit("failed", **describe(chain, sorted(dead_nodes() - dead_before)))
        raise SystemExit(1) from error


def causes(error: BaseException) -> list[BaseException]:
    """The error and what caused it, the first cause last; of a RayTaskError what the worker raised."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        remote = getattr(current, "cause", None)
        following = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        current = remote if isinstance(remote, BaseException) else following
    return found


def describe(chain: list[BaseException], died: Sequence[str] = ()) -> dict[str, Any]:
    """A failure as a supervisor reads it: {"message", "remedy", "types", "errnos", "dead_nodes"}.

    `types` are the classes of the errors of the chain with their bases, by full name; `errnos` are those of
    its OSErrors, such as ENOSPC; `died` are the names of the Ray nodes that died meanwhile.
    """
    types = [f"{cls.__module__}.{cls.__qualname__}" for error in chain for cls in type(error).__mro__[:-2]]
    numbers = [error.errno for error in chain if isinstance(error, OSError) and error.errno]
    remedies = [error.remedy for error in chain if isinstance(error, SkypodError) and error.remedy]
    return {
        "message": explain(chain[0], died),
        "remedy": remedies[0] if remedies else "",
        "types": list(dict.fromkeys(types)),
        "errnos": [errno.errorcode.get(number, str(number)) for number in numbers],
        "dead_nodes": list(died),
    }


def explain(error: BaseException, died: Sequence[str] = ()) -> str:
    """What went wrong, without the traceback that Ray puts into an error's text, and which nodes died."""
    while isinstance(getattr(error, "cause", None), BaseException):
        error = error.cause  # of a RayTaskError
    text = f"{type(error).__name__}: {error}"
    if len(text) > 2000:
        text = f"{text[:600]} [...] {text[-1400:]}"  # others put the cause last, too
    return f"{text} (Ray nodes that died: {', '.join(died)})" if died else text


def dead_nodes() -> set[str]:
    """The names of all that the cluster ever lost; workers elsewhere only see that a peer is gone."""
    import ray

    with suppress(Exception):  # a cluster that cannot be asked must not hide what went wrong
        return {node["NodeName"] for node in ray.nodes() if not node["Alive"]}
    return set()


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
    main(Path(sys.argv[1]), None, *map(int, sys.argv[2:]))
