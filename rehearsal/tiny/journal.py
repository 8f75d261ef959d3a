"""What a warm start notes while it runs: one JSON object per line, in a folder that outlives a kill."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from rehearsal.tiny import boards
from rehearsal.tiny.play import play
from training.errors import ConfigError
from training.files import write_json


class Journal:
    """Progress lines of one warm start, kept beside the states that a restart continues from.

    `request` says what is being made; ConfigError when the folder holds an unfinished other thing.
    """

    def __init__(self, folder: Path, request: dict[str, Any]):
        self.folder = folder
        self._file = folder / "progress.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        self._check(request)
        earlier = [entry["cpu_s"] for entry in self.entries()]
        self._cpu = max(earlier, default=0.0) - time.process_time()

    def note(self, stage: str, **values: Any) -> None:
        """Append and print one line."""
        entry = {"stage": stage, "cpu_s": self.cpu_s()}
        entry |= {name: round(v, 4) if isinstance(v, float) else v for name, v in values.items()}
        line = json.dumps(entry)
        with self._file.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def cpu_s(self) -> float:
        """CPU seconds so far, those of runs that this one continues included."""
        return round(self._cpu + time.process_time(), 1)

    def entries(self) -> list[dict[str, Any]]:
        """All lines so far, oldest first."""
        if not self._file.exists():
            return []
        return [json.loads(line) for line in self._file.read_text().splitlines()]

    def discard(self) -> None:
        """Remove the folder; call once the result is in its place."""
        shutil.rmtree(self.folder)

    def _check(self, request: dict[str, Any]) -> None:
        path = self.folder / "request.json"
        if path.exists() and json.loads(path.read_text()) != request:
            raise ConfigError(
                f"{self.folder} holds an unfinished warm start of another request than {request}",
                "finish that one, or remove the folder",
            )
        write_json(path, request)


def grades(policy: Any, *, samples: int = 2) -> dict[str, float]:
    """How a policy plays: greedy on the published and the dev mazes, and sampled at temperature 1."""
    tiles = boards.patches()
    test = play(policy, tiles, boards.test(), boards.MAX_TURNS)
    dev = play(policy, tiles, boards.dev(), boards.MAX_TURNS)
    sampled = [
        play(policy, tiles, boards.test(), boards.MAX_TURNS, temperature=1.0, seed=seed)
        for seed in range(samples)
    ]
    return {
        "test_greedy": test.solve_rate,
        "dev_greedy": dev.solve_rate,
        "dev_ceiling": boards.ceiling(boards.dev()),
        "test_sampled": sum(game.solve_rate for game in sampled) / samples,
        "well_formed": test.well_formed,
    }
