"""The class of a failure, from what a driver and Ray say of it."""

import pytest

from training.jobs import Job
from training.supervisor.failure import FINAL, REMEDIES, Failure, Kind, classify


def job(status: str = "FAILED", code: int | None = 1, message: str = "it failed") -> Job:
    return Job("r-1", "r", status, message, code)


def told(message: str, *types: str, errnos: tuple[str, ...] = (), dead: tuple[str, ...] = ()):
    return {"message": message, "types": list(types), "errnos": list(errnos), "dead_nodes": list(dead)}


ACTOR = ("ray.exceptions.ActorDiedError", "ray.exceptions.RayActorError", "ray.exceptions.RayError")
TASK = ("ray.exceptions.RayTaskError(RuntimeError)", "ray.exceptions.RayError", "builtins.RuntimeError")


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        (Kind.NODE_LOST, told("ActorDiedError: it died unexpectedly", *ACTOR)),
        (Kind.NODE_LOST, told("x", "ray.exceptions.ActorUnavailableError", "ray.exceptions.RayActorError")),
        (Kind.NODE_LOST, told("x", "ray.exceptions.WorkerCrashedError")),
        (
            Kind.NODE_LOST,
            told("RuntimeError: [..] Connection closed by peer [127.0.0.1]:1", "builtins.RuntimeError"),
        ),
        (
            Kind.STALLED,
            told("RuntimeError: [..] Timed out waiting 120000ms for send operation to complete", *TASK),
        ),
        (
            Kind.STALLED,
            told("RuntimeError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(..)", *TASK),
        ),
        (Kind.NODE_LOST, told("ValueError: strange", "builtins.ValueError", dead=("worker-2",))),
        (Kind.NODE_LOST, told("EngineDeadError: core died", "vllm.v1.engine.exceptions.EngineDeadError")),
        (
            Kind.NODE_LOST,
            told("x", "aiohttp.client_exceptions.ClientConnectionError", errnos=("ECONNREFUSED",)),
        ),
        # Ray's text on a killed actor speculates about the kernel's OOM killer; that proves nothing.
        (
            Kind.NODE_LOST,
            told("ActorDiedError: potential causes: (1) killed by SIGKILL by OOM killer", *ACTOR),
        ),
        (Kind.OUT_OF_MEMORY, told("OutOfMemoryError: CUDA out of memory", "torch.OutOfMemoryError")),
        (Kind.OUT_OF_MEMORY, told("Task was killed due to the node running low on memory", *ACTOR)),
        (Kind.STORAGE, told("OSError: full", "builtins.OSError", errnos=("ENOSPC",))),
        (Kind.STORAGE, told("OSError", "builtins.OSError", errnos=("EIO",))),
        (Kind.STORAGE, told("x", "training.locks.LockedError", "training.errors.SkypodError")),
        (Kind.DATA, told("DataError: torn", "training.errors.DataError", "training.errors.SkypodError")),
        (Kind.CODE, told("KeyError: 'x'", "builtins.KeyError")),
        (Kind.CODE, told("OSError: no file", "builtins.FileNotFoundError", errnos=("ENOENT",))),
        # The constructor of an actor raised.
        (Kind.CODE, told("The actor died because of an error raised in its creation task, ...", *ACTOR)),
        (Kind.DRIVER_LOST, told("SystemExit: 15", "builtins.SystemExit")),
    ],
)
def test_by_what_the_driver_said(kind, failed):
    found = classify(failed, job())
    assert found.kind is kind
    assert found.message == failed["message"]
    assert found.remedy


@pytest.mark.parametrize(
    ("kind", "ended", "dead", "words"),
    [
        (Kind.DRIVER_LOST, job(code=-9), [], "SIGKILL; the kernel does that when memory runs out"),
        (Kind.DRIVER_LOST, job(code=137), [], "SIGKILL"),
        (Kind.DRIVER_LOST, job(code=-11), [], "SIGSEGV"),
        (Kind.DRIVER_LOST, job(code=255), [], "signal 127"),
        (Kind.DRIVER_LOST, job(code=None, message="Job supervisor actor died"), [], "actor died"),
        (Kind.NODE_LOST, job(code=None), ["head"], "nodes that died: head"),
        (Kind.CODE, job(code=1), [], "status 1 and said nothing"),
        (Kind.CODE, job("SUCCEEDED", 0), [], "status 0 and said nothing"),
        (Kind.FENCED, job(code=5), [], "replaced by a newer attempt"),
        (Kind.STOPPED, job("STOPPED", None), [], "stopped by somebody"),
    ],
)
def test_without_a_word_of_the_driver_by_how_it_ended(kind, ended, dead, words):
    found = classify(None, ended, dead)
    assert found.kind is kind
    assert words in found.message


def test_every_class_has_a_remedy_and_four_are_final():
    assert set(REMEDIES) == set(Kind)
    assert {kind for kind in Kind if not Failure.of(kind, "").may_pass} == FINAL
    assert {k.value for k in FINAL} == {"data", "code", "fenced", "stopped"}
