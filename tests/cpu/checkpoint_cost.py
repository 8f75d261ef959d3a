"""What a checkpoint costs, ours beside SkyRL's own, alternating in one run:

    .venv-train/bin/python -m tests.cpu.checkpoint_cost [--ranks 6] [--lora-rank 16] [--saves 5]

The run is real: two steps of a small recipe on a private Ray cluster. Prints one JSON object.
"""

from rehearsal.cpu.job import CPU  # isort: skip - patches SkyRL before it is used

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import ray
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.trainer_utils import ResumeMode
from skyrl_gym.envs import register

from rehearsal.cpu.skyrl_workers import CpuPolicyRank
from training import prepare, recipe
from training.events import EventLog
from training.recipe import Recipe
from training.run import SHARED_VARIABLE
from training.skyrl.experiment import MazeExperiment
from training.skyrl.gym_env import ENV_ID

ROOT = Path(__file__).resolve().parents[2]


class EitherRank(CpuPolicyRank):
    """Saves and loads as ours or as SkyRL's own."""

    stock = False

    def use_stock(self, stock: bool) -> None:
        self.stock = stock

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        return (FSDPPolicyWorkerBase if self.stock else CpuPolicyRank).save_checkpoint(self, *args, **kwargs)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        return (FSDPPolicyWorkerBase if self.stock else CpuPolicyRank).load_checkpoint(self, *args, **kwargs)


def small(ranks: int, lora_rank: int) -> Recipe:
    """Two steps on one node."""
    return recipe.load(
        ROOT / "recipes" / "maze-smoke.toml",
        {
            "topology.worker_nodes": 1,
            "topology.gpus_per_node": ranks,
            "policy.lora_rank": lora_rank,
            "policy.lora_alpha": 2 * lora_rank,
            "optimization.mazes_per_step": 6,
            "optimization.mini_batch_mazes": 6,
            "data.train_mazes": 12,
            "data.dev_mazes": 2,
            "data.test_512_mazes": 1,
            "data.ood_mazes": 3,
            "gate.min_solve_rate": 0.5,
        },
    )


def measure(experiment: MazeExperiment, saves: int) -> dict[str, Any]:
    """Medians over `saves` of each kind, taken in turns."""
    trainer, found = experiment.trainer, {}
    seconds: dict[str, list[float]] = {"ours": [], "ours_load": [], "stock": [], "stock_load": []}
    folder = Path(trainer.cfg.trainer.ckpt_path)

    def timed(what: str, act: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        done = act()
        seconds[what].append(time.perf_counter() - start)
        return done

    trainer.resume_mode = ResumeMode.LATEST
    trainer._resumed_from = None
    for _ in range(saves):
        for kind, owner in (("ours", type(trainer)), ("stock", RayPPOTrainer)):
            ray.get(trainer.policy_model.async_run_ray_method("pass_through", "use_stock", kind == "stock"))
            shutil.rmtree(folder, ignore_errors=True)
            saved = timed(kind, lambda owner=owner: owner.save_checkpoints(trainer))
            files = [path for path in Path(saved).rglob("*") if path.is_file()]
            found[f"{kind}_bytes"] = sum(path.stat().st_size for path in files)
            timed(f"{kind}_load", lambda owner=owner: owner.load_checkpoints(trainer))
            trainer._resumed_from = None
    found |= {f"{what}_s": round(median(values), 4) for what, values in seconds.items()}
    found["bytes_ratio"] = round(found["stock_bytes"] / found["ours_bytes"], 1)
    found["save_ratio"] = round(found["stock_s"] / found["ours_s"], 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=6)
    parser.add_argument("--lora-rank", type=int, default=16)
    parser.add_argument("--saves", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cost-") as place:
        shared = Path(place)
        base = shared / "models" / "maze-tiny-smoke"
        made = [sys.executable, "-m", "rehearsal.tiny.model", "--out", str(base), "--seed", "0"]
        subprocess.run(made, check=True, cwd=ROOT, stdout=sys.stderr)
        chosen, run_dir = small(options.ranks, options.lora_rank), shared / "runs" / "cost"
        prepare.prepare(chosen, run_dir, base_dir=base, image="benchmark")
        os.environ |= {SHARED_VARIABLE: place, "RAY_worker_niceness": "0", "OMP_NUM_THREADS": "1"}
        ray.init(
            address="local",
            num_cpus=4 * options.ranks,
            num_gpus=options.ranks,
            include_dashboard=False,
            object_store_memory=2**30,
            _temp_dir=tempfile.mkdtemp(dir=place, prefix="r"),
        )
        try:
            register(id=ENV_ID, entry_point="training.skyrl.gym_env:GameEnv")
            backend = replace(CPU, policy_rank=EitherRank)
            events = EventLog(run_dir / "events.jsonl", to_stdout=False)
            experiment = MazeExperiment(chosen, run_dir, shared, backend, events, nullcontext)
            experiment.run()
            print(json.dumps({**vars(options), **measure(experiment, options.saves)}))
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
