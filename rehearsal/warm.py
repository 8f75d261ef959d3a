"""The base policy of a rehearsal: made once by the warm start, then kept."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from training.errors import SubstrateError

QUICK = "maze-tiny-smoke"
"""The base model folder that a short warm start is enough for."""


def ensure(folder: Path, train_python: Path, on_line: Callable[[str], None]) -> bool:
    """Make the base model in `folder` unless it is complete; True when it was made now.

    Raises SubstrateError with the warm start's own last words when it fails.
    """
    if (folder / "warmstart.json").is_file():
        return False
    shutil.rmtree(folder, ignore_errors=True)
    command = [str(train_python), "-m", "rehearsal.tiny.warmstart", "--out", str(folder), "--seed", "0"]
    if folder.name == QUICK:
        command.append("--quick")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    lines: list[str] = []
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    try:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            on_line(line.rstrip()[:100])
        if process.wait():
            raise SubstrateError(
                "the warm start of the tiny policy failed: " + " | ".join(lines[-5:]),
                "run it alone to see all of it: " + " ".join(command),
            )
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    return True


def digest(folder: Path) -> str:
    """The digest that the warm start gave its result."""
    return json.loads((folder / "warmstart.json").read_text())["model_digest"]
