"""`python -m rehearsal.stop`: end the rehearsal of this checkout, in order, and wait until it has."""

import os
import signal
import sys
import time
from pathlib import Path

from rehearsal.substrate import Folders

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 180


def main() -> int:
    """0 when nothing runs any more."""
    lock = Folders(ROOT).state / "lock"
    text = lock.read_text().strip() if lock.is_file() else ""
    if not text or not _alive(int(text)):
        print("no rehearsal of this checkout is running")
        return 0
    pid = int(text)
    print(f"ending rehearsal {pid}")
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE_S
    while _alive(pid):
        if time.monotonic() > deadline:
            print(f"rehearsal {pid} did not end in {PATIENCE_S} s", file=sys.stderr)
            return 1
        time.sleep(0.5)
    return 0


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
