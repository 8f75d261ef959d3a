"""Why an attempt failed, from what its driver said of itself and what Ray said of its job."""

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from training.jobs import Job
from training.lease import FencedError


class Kind(StrEnum):
    """The classes of failures; all but the last four may go away by another attempt."""

    NODE_LOST = "node_lost"
    OUT_OF_MEMORY = "out_of_memory"
    STALLED = "stalled"
    DRIVER_LOST = "driver_lost"
    HEAD_LOST = "head_lost"
    STORAGE = "storage"
    DATA = "data"
    CODE = "code"
    FENCED = "fenced"
    STOPPED = "stopped"


FINAL = {Kind.DATA, Kind.CODE, Kind.FENCED, Kind.STOPPED}
REMEDIES = {
    Kind.NODE_LOST: "see the node's health: kubectl describe node; HyperPod replaces GPU nodes by itself",
    Kind.OUT_OF_MEMORY: "lower rollout.gpu_memory_utilization, or micro_batch_episodes in a new run",
    Kind.STALLED: "look for the process that hangs; raise recovery.stall_s where a step takes longer",
    Kind.DRIVER_LOST: "see the log of the job and the memory of the head",
    Kind.HEAD_LOST: "see the head's pod and node; HyperPod does not replace CPU nodes by itself",
    Kind.STORAGE: "see the free space and the health of the shared file system",
    Kind.DATA: "correct what the message names, then resume the run or prepare a new one",
    Kind.CODE: "correct the code, then resume the run",
    Kind.FENCED: "nothing is to be done here: another driver has the run",
    Kind.STOPPED: "resume it when it is to go on: `skypod train resume`",
}


@dataclass(frozen=True)
class Failure:
    """One failed attempt's class, what is known of its cause, and what to do about it."""

    kind: Kind
    message: str
    remedy: str

    @classmethod
    def of(cls, kind: Kind, message: str, remedy: str = "") -> "Failure":
        return cls(kind, message, remedy or REMEDIES[kind])

    @property
    def may_pass(self) -> bool:
        """Whether another attempt can help."""
        return self.kind not in FINAL


# By the last part of a class's name: of Ray, vLLM, PyTorch, aiohttp, httpx and Python itself.
_MEMORY = {"OutOfMemoryError", "MemoryError"}
_MEMORY_WORDS = ("running low on memory", "CUDA out of memory", "OutOfMemoryError")
_DISK = {"OutOfDiskError", "LockedError"}
_DISK_ERRNOS = {"ENOSPC", "EDQUOT", "EIO", "ESTALE", "EROFS"}
_LOST = {
    "RayActorError",
    "ActorUnschedulableError",
    "TaskUnschedulableError",
    "NodeDiedError",
    "WorkerCrashedError",
    "LocalRayletDiedError",
    "ObjectLostError",
    "RpcError",
    "RaySystemError",
    "EngineDeadError",
    "DistNetworkError",
    "ConnectionError",
    "ClientConnectionError",
    "TransportError",
}
# What survivors of a collective say when a peer has gone, and SkyRL when GPUs are not to be had in time.
_LOST_WORDS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "NCCL communicator was aborted",
    "ncclRemoteError",
    "ncclSystemError",
    "Failed to create placement group",
)
# What gloo and NCCL say of a peer that is there and does nothing: sooner than `stall_s` where that is long.
_HUNG_WORDS = ("operation to complete", "collective operation timeout")
# An actor whose constructor raised is called dead, too; that is a fault of the code.
_MADE_WRONG = "error raised in its creation task"
_OURS = "training.errors.SkypodError"
_ENDED_FROM_OUTSIDE = {"SystemExit", "KeyboardInterrupt"}


def classify(failed: Mapping[str, Any] | None, job: Job, dead_nodes: Collection[str] = ()) -> Failure:
    """The failure of an attempt whose job ended without success.

    `failed` is the driver's last event of that name (see training.run.describe), None when it left none;
    `dead_nodes` are nodes that died since the attempt began.
    """
    if job.status == "STOPPED":
        return Failure.of(Kind.STOPPED, f"job {job.job} was stopped by somebody")
    if job.exit_code == FencedError.exit_code:
        return Failure.of(Kind.FENCED, f"job {job.job} was replaced by a newer attempt")
    if failed is None:
        return _without_a_word(job, dead_nodes)
    message, dead = failed["message"], [*failed.get("dead_nodes", ()), *dead_nodes]
    kind = _kind(message, failed.get("types", ()), failed.get("errnos", ()), dead)
    return Failure.of(kind, message, failed.get("remedy", "") if kind is Kind.DATA else "")


def _kind(message: str, types: Sequence[str], errnos: Collection[str], dead: Collection[str]) -> Kind:
    names = {name.rpartition(".")[2] for name in types}
    if names & _MEMORY or any(words in message for words in _MEMORY_WORDS):
        return Kind.OUT_OF_MEMORY
    if names & _DISK or set(errnos) & _DISK_ERRNOS:
        return Kind.STORAGE
    if dead:
        return Kind.NODE_LOST
    if any(words in message for words in _HUNG_WORDS):
        return Kind.STALLED
    if names & _LOST or any(words in message for words in _LOST_WORDS):
        return Kind.CODE if _MADE_WRONG in message else Kind.NODE_LOST
    if _OURS in types:
        return Kind.DATA
    if names & _ENDED_FROM_OUTSIDE:
        return Kind.DRIVER_LOST
    return Kind.CODE


def _without_a_word(job: Job, dead_nodes: Collection[str]) -> Failure:
    code = job.exit_code
    if code is not None and 0 <= code < 128:
        # Python itself ended it: before our handler was in place, or without an adapter.
        return Failure.of(Kind.CODE, f"the driver ended with status {code} and said nothing: {job.message}")
    if dead_nodes:
        return Failure.of(Kind.NODE_LOST, f"{job.message} (nodes that died: {', '.join(dead_nodes)})")
    if code is None:
        return Failure.of(Kind.DRIVER_LOST, job.message or "nobody saw the driver end")
    number = -code if code < 0 else code - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    hint = "; the kernel does that when memory runs out" if name == "SIGKILL" else ""
    return Failure.of(Kind.DRIVER_LOST, f"the driver was ended by {name}{hint}")
