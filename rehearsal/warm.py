"""The base policy of a rehearsal: made once by the warm start, then kept.

`python -m rehearsal.warm` makes it anew.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rehearsal import preflight
from rehearsal.interrupts import interruptible
from rehearsal.substrate import Folders
from training.audits.ancestry import DECLARATION
from training.errors import ConfigError, SkypodError, SubstrateError
from training.files import tree_digest

QUICK = "maze-tiny-smoke"
"""The base model folder that a short warm start is enough for."""
BASES = ("maze-tiny", QUICK)
"""The folders that belong to the rehearsal: no other is ever written or removed."""
RECORD = "warmstart.json"


class WarmStart:
    """Makes the base model in `folder` beside other work, unless it is complete already.

    The warm start writes its result in one step and continues where an ended one was.
    """

    def __init__(self, folder: Path, train_python: Path, log: Path):
        if folder.name not in BASES:
            raise ConfigError(
                f"the rehearsal cannot make the base model {folder.name!r}",
                f"use a recipe whose policy.base_model is one of: {', '.join(f'models/{n}' for n in BASES)}",
            )
        self._folder = folder
        self._log = log
        self._command = [str(train_python), "-m", "rehearsal.tiny.warmstart", "--out", str(folder)]
        self._command += ["--seed", "0"] + (["--quick"] if folder.name == QUICK else [])
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> "WarmStart":
        if not self._is_complete():
            shutil.rmtree(self._folder, ignore_errors=True)
            environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
            environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("w") as log:
                self._process = subprocess.Popen(
                    self._command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,  # a terminal's Ctrl-C reaches it through us, in order
                )
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def wait(self, on_line: Callable[[str], None]) -> str:
        """Wait until the base is there; says "made" or "cached" and its digest.

        Raises SubstrateError with the warm start's last words when it fails.
        """
        if self._process is None:
            return f"cached {self._digest()}"
        while self._process.poll() is None:
            on_line((_last_lines(self._log, 1) or [""])[0][:100])
            time.sleep(0.3)
        if self._process.returncode:
            raise SubstrateError(
                "the warm start of the tiny policy failed: " + " | ".join(_last_lines(self._log, 5)),
                f"see {self._log}, or remove {self._folder} and try again",
            )
        return f"made {self._digest()}"

    def _is_complete(self) -> bool:
        """Whether the folder holds what a warm start wrote, byte for byte, and says what it was taught."""
        try:
            wanted = json.loads((self._folder / RECORD).read_text())["model_digest"]
        except (OSError, ValueError, KeyError):
            return False
        declared = (self._folder / DECLARATION).is_file()
        return declared and tree_digest(self._folder, without=RECORD) == wanted

    def _digest(self) -> str:
        return json.loads((self._folder / RECORD).read_text())["model_digest"][:12]


def renew(folders: Folders, on_line: Callable[[str], None]) -> str:
    """Remove every base and make the full one again; says its digest.

    Raises SubstrateError while a rehearsal runs, which reads them.
    """
    models = folders.shared / "models"
    with preflight.only_one(folders.state), interruptible():
        for name in BASES:
            shutil.rmtree(models / name, ignore_errors=True)
        log = folders.state / "warmstart.log"
        with WarmStart(models / BASES[0], folders.train_python, log) as base:
            return base.wait(on_line)


def _last_lines(path: Path, count: int) -> list[str]:
    return [line for line in path.read_text(errors="replace").splitlines() if line.strip()][-count:]


if __name__ == "__main__":
    try:
        print(renew(Folders(Path(__file__).resolve().parent.parent), lambda line: None))
    except SkypodError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
