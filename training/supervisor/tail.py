"""What a run's drivers add to its events, as it comes."""

from pathlib import Path
from typing import Any

from training.events import decode


class Tail:
    """Reads on from the end that the file has now."""

    def __init__(self, path: Path):
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0
        self._unfinished = b""

    def new(self) -> list[dict[str, Any]]:
        """The events added since the last call; a line without its end is kept for the next."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            added = file.read()
        self._at += len(added)
        *lines, self._unfinished = (self._unfinished + added).split(b"\n")
        decoded = (decode(line.decode(errors="replace")) for line in lines)
        return [event for event in decoded if event is not None]
