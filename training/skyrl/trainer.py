"""SkyRL's trainer with our evaluation, a resume that skips nothing, and a cheaper clean-up."""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.trainer_utils import cleanup_old_checkpoints

from training import lineage
from training.events import EventLog
from training.recipe import Recipe
from training.skyrl.evaluation import Evaluator


class MazeTrainer(RayPPOTrainer):
    """`evaluator`, `events`, `recipe` and `run_dir` are set by the experiment before training starts."""

    evaluator: Evaluator
    events: EventLog
    recipe: Recipe
    run_dir: Path

    async def eval(self, vllm_metrics_scraper: Any = None) -> dict[str, float]:
        """Play dev; before the first and after the last step also the published test, once each."""
        step, last = self.global_step, self.recipe.optimization.steps
        loop = asyncio.get_running_loop()

        async def play(split: str, label: str) -> dict[str, Any]:
            return await asyncio.to_thread(self.evaluator.play, split, label, loop)

        dev = await play("dev", f"dev-{step:04d}")
        if step == 0:
            await play("test", "baseline")
        elif step == last:
            await play("test", "final")
        return {"eval/dev/solve_rate": dev["solve_rate"], "eval/dev/format_rate": dev["format_rate"]}

    def postprocess_generator_output(self, generator_output: Any, uids: list[str]) -> Any:
        groups = defaultdict(set)
        for uid, reward in zip(uids, generator_output["rewards"], strict=True):
            groups[uid].add(round(sum(reward) if isinstance(reward, list) else reward, 6))
        self.all_metrics["skypod/signal_groups"] = sum(len(g) > 1 for g in groups.values()) / len(groups)
        return super().postprocess_generator_output(generator_output, uids)

    def save_checkpoints(self) -> str:
        path = super().save_checkpoints()
        relative = Path(path).relative_to(self.run_dir).as_posix()
        lineage.append(self.run_dir, "checkpoints", {"step": self.global_step, "folder": relative})
        self.events.emit("checkpoint", step=self.global_step, folder=relative)
        return path

    def load_checkpoints(self) -> tuple[int, str | None]:
        """SkyRL stores an exhausted sampler at the end of an epoch, and a resume there skips the next one."""
        step, path = super().load_checkpoints()
        if step and step % len(self.train_dataloader) == 0:
            self._build_train_dataloader_and_compute_training_steps()
        return step, path

    def _cleanup_old_checkpoints(self) -> None:
        """The checkpoints are on a shared file system: once is enough, and no worker per node is started."""
        cleanup_old_checkpoints(self.cfg.trainer.ckpt_path, self.cfg.trainer.max_ckpts_to_keep)
