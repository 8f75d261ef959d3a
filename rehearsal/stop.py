"""`python -m rehearsal.stop`: end the rehearsal of this checkout, in order, and wait until it has."""

import os
import signal
import sys
import time
from pathlib import Path

from rehearsal import preflight
from rehearsal.substrate import Folders
from training.errors import SubstrateError

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 180


def end(state_dir: Path, patience_s: float = PATIENCE_S) -> str:
    """Ask the rehearsal that holds the lock to end, and wait until it lets go; says what was done.

    Only the lock tells that one runs: a process id that an earlier one left behind is never signalled.
    Raises SubstrateError when it does not end in time.
    """
    deadline = time.monotonic() + patience_s
    asked = None
    while preflight.is_running(state_dir):
        pid = preflight.holder(state_dir)
        if asked is None and pid is not None:
            os.kill(pid, signal.SIGTERM)
            asked = pid
        if time.monotonic() > deadline:
            raise SubstrateError(f"rehearsal {pid} did not end in {patience_s:g} s", f"see {state_dir}")
        time.sleep(0.3)
    return f"rehearsal {asked} has ended" if asked else "no rehearsal of this checkout is running"


if __name__ == "__main__":
    try:
        print(end(Folders(ROOT).state))
    except SubstrateError as error:
        sys.exit(f"error: {error}")
