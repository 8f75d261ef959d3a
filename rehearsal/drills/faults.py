"""What can befall a run, where it applies, and what is promised for it."""

import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rehearsal.drills import clock, damage, disk, network
from rehearsal.drills.targets import Targets, kill
from training.supervisor.failure import Kind

PHASES = ("rollout", "update", "checkpoint", "sync", "evaluation")
START = "start"
"""A driver has just come up, and has read nothing yet."""
BOUNDARY = "epoch end"
"""The last step of an epoch has just been saved: resumed there, stock SkyRL skips the whole next epoch."""


@dataclass(frozen=True)
class Scene:
    """The run that a fault strikes. `reference` is the uninterrupted run, of which foreign files come."""

    targets: Targets
    run_dir: Path
    reference: Path

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"


@dataclass(frozen=True)
class Fault:
    """`classes`: what the supervisor may call it; none where no attempt fails, and the same driver goes on.

    `may_lose`: how many finished steps may have to be trained again. `amend` is what a person does once the
    supervisor gave the run up, before resuming it; `relieve` is what they do once an attempt has failed.
    """

    name: str
    does: str
    phases: tuple[str, ...]
    classes: frozenset[Kind]
    strike: Callable[[Scene], None]
    may_lose: int = 0
    passes_over: bool = False
    """Whether the next attempt has to say that it passed a damaged checkpoint over."""
    needs: str = ""
    """"disk": checkpoints on a small disk; "clock": a clock that can be moved; "network": pods to cut off."""
    relieve: Callable[[Scene], None] | None = None
    amend: Callable[[Scene], None] | None = None


def _kill(part: str, scene: Scene, *, first: bool = False) -> None:
    found = getattr(scene.targets, part)()
    kill(found[:1] if first else found)


def _stop(part: str, scene: Scene) -> None:
    getattr(scene.targets, part)()[0].send_signal(signal.SIGSTOP)


def _dead_then(harm: Callable[[Path], None], scene: Scene) -> None:
    kill(scene.targets.driver())
    harm(scene.checkpoints)


def _plant(scene: Scene) -> None:
    kill(scene.targets.driver())
    damage.plant(scene.checkpoints, scene.reference / "checkpoints")


def _unplant(scene: Scene) -> None:
    shutil.rmtree(damage.newest(scene.checkpoints))


def _jump(seconds: float, scene: Scene) -> None:
    clock.jump(scene.run_dir, seconds)
    kill(scene.targets.driver())
    clock.date_files(scene.run_dir, seconds)


def _fault(name: str, does: str, phases: tuple[str, ...], classes: set[Kind], strike, **more) -> Fault:
    return Fault(name, does, phases, frozenset(classes), strike, **more)


_BETWEEN = ("rollout", "update")
"""Phases of a step in which the one before is on disk and nothing is being written."""
_DAY_S = 86_400
_HARMED = "SIGKILL to the driver, then "

FAULTS = {
    fault.name: fault
    for fault in (
        _fault(
            "driver",
            "SIGKILL to the driver",
            (START, *PHASES, BOUNDARY),
            {Kind.DRIVER_LOST},
            partial(_kill, "driver"),
        ),
        _fault(
            "rank",
            "SIGKILL to one FSDP rank",
            PHASES,
            {Kind.NODE_LOST},
            partial(_kill, "ranks", first=True),
        ),
        _fault("engine", "SIGKILL to the vLLM engine", PHASES, {Kind.NODE_LOST}, partial(_kill, "engines")),
        _fault("raylet", "SIGKILL to a worker's raylet", PHASES, {Kind.NODE_LOST}, partial(_kill, "raylet")),
        _fault(
            "worker",
            "SIGKILL to everything in a worker's pod",
            PHASES,
            {Kind.NODE_LOST},
            partial(_kill, "worker"),
        ),
        _fault(
            "head",
            "SIGKILL to everything in the head's pod, driver included",
            PHASES,
            {Kind.HEAD_LOST},
            partial(_kill, "head"),
        ),
        _fault(
            "supervisor",
            "SIGKILL to the supervisor",
            (START, *PHASES),
            set(),
            partial(_kill, "supervisor"),
        ),
        _fault("hung driver", "SIGSTOP to the driver", _BETWEEN, {Kind.STALLED}, partial(_stop, "driver")),
        _fault("hung rank", "SIGSTOP to one FSDP rank", _BETWEEN, {Kind.STALLED}, partial(_stop, "ranks")),
        *(
            _fault(
                f"{name} checkpoint",
                _HARMED + does,
                _BETWEEN,
                {Kind.DRIVER_LOST},
                partial(_dead_then, harm),
                may_lose=1,
                passes_over=True,
            )
            for name, does, harm in (
                ("torn", "half of the newest checkpoint's checkpoint.json", damage.tear),
                ("truncated", "one byte less at the end of its largest file", damage.truncate),
                ("flipped", "one bit of its largest file inverted", damage.flip),
                ("missing", "its folder removed", damage.remove),
            )
        ),
        _fault(
            "foreign checkpoint",
            _HARMED + "a whole checkpoint of another run put there as the newest",
            _BETWEEN,
            {Kind.DRIVER_LOST},
            _plant,
            amend=_unplant,
        ),
        _fault(
            "full disk",
            "no byte is free for the next checkpoint, until an attempt has failed",
            ("update",),
            {Kind.STORAGE},
            lambda scene: disk.fill(scene.checkpoints),
            needs="disk",
            relieve=lambda scene: disk.free(scene.checkpoints),
        ),
        *(
            _fault(
                f"clock {way}",
                f"the clock of driver and supervisor {does}, {_HARMED.removesuffix(', then ')}",
                _BETWEEN,
                {Kind.DRIVER_LOST},
                partial(_jump, seconds),
                needs="clock",
            )
            for way, does, seconds in (
                ("ahead", "jumps 30 days ahead", 30 * _DAY_S),
                ("back", "jumps 30 days back", -30 * _DAY_S),
            )
        ),
        _fault(
            "network cut",
            "every packet from and to a worker's pod is dropped",
            _BETWEEN,
            {Kind.NODE_LOST, Kind.STALLED},
            lambda scene: network.cut(scene.targets.worker_pod().metadata.uid),
            needs="network",
        ),
    )
}
