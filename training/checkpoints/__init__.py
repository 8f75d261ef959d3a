"""Checkpoints of a run: what is trainable and what is needed to continue exactly, complete or not there."""

from contextlib import nullcontext
from pathlib import Path

from training import lineage
from training.checkpoints.store import Fence, Identity, Store

FOLDER = "checkpoints"


def of_run(run_dir: Path, fence: Fence = nullcontext) -> Store:
    """The checkpoints of a run, as many as its recipe keeps."""
    manifest = lineage.read(run_dir)
    identity = Identity(run=manifest["run"], base=manifest["base"]["digest"])
    return Store(run_dir / FOLDER, identity, lineage.read_recipe(run_dir).checkpoints.keep, fence)
