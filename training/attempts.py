"""The attempts at a run, in its manifest: each is one Ray job with the token of the run's lease.

The supervisor says when an attempt started and what became of it, the driver what it runs on:
{"attempt", "token", "job", "started", "ended", "seconds", "outcome", "failure", "message", "from_step",
"to_step", "backend", "python", "libraries", "machine", "processor", "system"}.
"""

from pathlib import Path
from typing import Any

from training import lineage

SECTION = "attempts"


def note(run_dir: Path, token: int, **facts: Any) -> None:
    """Add facts to the attempt of `token`; it is begun where there is none. Token 0 always begins one."""
    with lineage.changing(run_dir) as manifest:
        entries = manifest[SECTION]
        found = next((entry for entry in entries if token and entry.get("token") == token), None)
        if found is None:
            found = {"attempt": len(entries) + 1, "token": token, "started": lineage.now()}
            entries.append(found)
        found.update(facts)


def read(run_dir: Path) -> list[dict[str, Any]]:
    """All attempts, oldest first."""
    return lineage.read(run_dir)[SECTION]


def newest_step(run_dir: Path) -> int:
    """The step of the newest checkpoint on record, 0 before the first."""
    return max((entry["step"] for entry in lineage.read(run_dir)["checkpoints"]), default=0)
