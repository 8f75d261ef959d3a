"""Who may write to a run: one supervisor, its holder, and one driver, that of the newest token.

`lease.json` in the run folder says both. Each supervisor takes the lease under a name of its own and renews
it by counting `beat` up; each driver is started with a token that is one more than the last. Whoever finds
another name or token there has been replaced, and must not write any more: it is fenced.

A challenger calls a lease dead when its beat stood still for some time on the challenger's own monotonic
clock. No two clocks are compared, so a clock that jumps changes nothing.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from training.errors import DataError, SkypodError, SubstrateError, visible
from training.files import read_json, write_json
from training.locks import locked

FILE = "lease.json"
Clock = Callable[[], float]
Wait = Callable[[float], None]
_LOOK_S = 0.5


class FencedError(SkypodError):
    """A newer driver or supervisor has this run; the one that meets this error writes nothing more."""

    exit_code = 5


@dataclass(frozen=True)
class Lease:
    """`token` of the newest driver, 0 before the first; `holder` is "" while nobody supervises the run.

    `spent_s`: for how long the run has been supervised, by all its supervisors together.
    """

    token: int = 0
    holder: str = ""
    beat: int = 0
    spent_s: float = 0.0


def name_holder() -> str:
    """A name for this process that no other has: host, process id, and a few random digits."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def read(run_dir: Path) -> Lease:
    """The lease as it stands. Raises DataError when the file is none of ours."""
    path = run_dir / FILE
    if not path.exists():
        return Lease()
    try:
        found = Lease(**read_json(path))
        kinds = ((found.token, int), (found.holder, str), (found.beat, int), (found.spent_s, int | float))
        if not all(isinstance(value, kind) for value, kind in kinds):
            raise TypeError(f"{found} is none")
        return found
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is no lease: {visible(str(error))}",
            "stop every job of the run, then remove that file",
        ) from None


@contextmanager
def held(run_dir: Path, token: int) -> Iterator[None]:
    """Publish as the driver of `token`: no newer one is started before the block ends.

    Raises FencedError when there is a newer one already.
    """
    with locked(run_dir):
        newest = read(run_dir).token
        if newest != token:
            raise FencedError(
                f"attempt {token} of run {run_dir.name!r} was replaced by attempt {newest}",
                "nothing is to be done: the newer attempt goes on",
            )
        yield


def take(
    run_dir: Path, holder: str, patience_s: float, clock: Clock = time.monotonic, wait: Wait = time.sleep
) -> Lease:
    """Become the supervisor of the run; the lease as taken over.

    A lease that is held is watched until its beat moves or has stood still for `patience_s`. Raises
    SubstrateError naming the holder when it is alive, and when another challenger was faster.
    """
    seen, since = read(run_dir), clock()
    while seen.holder and clock() - since < patience_s and read(run_dir) == seen:
        wait(min(_LOOK_S, patience_s))
    with locked(run_dir):
        found = read(run_dir)
        if found.holder and found != seen:
            raise SubstrateError(
                f"run {run_dir.name!r} is supervised already, by {found.holder}",
                f"follow it: `skypod train follow {run_dir.name}`; or end that one first",
            )
        mine = replace(found, holder=holder, beat=found.beat + 1)
        _write(run_dir, mine)
    return mine


def renew(run_dir: Path, holder: str, spent_s: float, wait_s: float = 0.0) -> None:
    """Show that the holder lives. Raises FencedError when another took the lease over.

    Raises LockedError when the folder stays locked for `wait_s`: nobody can take the lease over meanwhile.
    """
    with owned(run_dir, holder, wait_s) as mine:
        _write(run_dir, replace(mine, beat=mine.beat + 1, spent_s=spent_s))


def next_token(run_dir: Path, holder: str) -> int:
    """The token of the holder's next driver; it fences all that were started before."""
    with owned(run_dir, holder) as mine:
        _write(run_dir, replace(mine, token=mine.token + 1, beat=mine.beat + 1))
    return mine.token + 1


def release(run_dir: Path, holder: str) -> None:
    """Leave the run to whoever comes next, without a wait. Nothing happens where it is another's already."""
    with locked(run_dir):
        mine = read(run_dir)
        if mine.holder == holder:
            _write(run_dir, replace(mine, holder="", beat=mine.beat + 1))


@contextmanager
def owned(run_dir: Path, holder: str, wait_s: float = 30.0) -> Iterator[Lease]:
    """Write as the supervisor `holder`: nobody takes the lease over before the block ends.

    Raises FencedError when another has taken it over.
    """
    with locked(run_dir, wait_s):
        found = read(run_dir)
        if found.holder != holder:
            raise FencedError(
                f"run {run_dir.name!r} was taken over by {found.holder or 'nobody yet'}",
                f"follow it: `skypod train follow {run_dir.name}`",
            )
        yield found


def _write(run_dir: Path, lease: Lease) -> None:
    write_json(run_dir / FILE, asdict(lease))
