"""SkyRL's trainer with our evaluation, diagnostics, a resume that skips nothing, and a cheaper clean-up."""

import asyncio
from pathlib import Path
from typing import Any

from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.trainer_utils import cleanup_old_checkpoints

from training import diagnostics, lineage, seal
from training.events import EventLog
from training.recipe import Recipe
from training.skyrl.evaluation import Evaluator


class MazeTrainer(RayPPOTrainer):
    """The fields are set by the experiment before training starts.

    `image_token` is an id of the vocabulary; the vision tower merges `patches_per_token` patches into one.
    """

    evaluator: Evaluator
    events: EventLog
    recipe: Recipe
    run_dir: Path
    image_token: int
    patches_per_token: int

    async def eval(self, vllm_metrics_scraper: Any = None) -> dict[str, float]:
        """Play dev; before the first and after the last step also the sealed splits, once each."""
        step, last = self.global_step, self.recipe.optimization.steps
        loop = asyncio.get_running_loop()

        async def play(split: str, label: str) -> dict[str, Any]:
            return await asyncio.to_thread(self.evaluator.play, split, label, loop)

        dev = await play("dev", f"dev-{step:04d}")
        if step in (0, last):
            for split in seal.SEALED:
                await play(split, seal.label("baseline" if step == 0 else "final", split))
        return {"eval/dev/solve_rate": dev["solve_rate"], "eval/dev/format_rate": dev["format_rate"]}

    def postprocess_generator_output(self, generator_output: Any, uids: list[str]) -> Any:
        rewards = [sum(r) if isinstance(r, list) else r for r in generator_output["rewards"]]
        self.all_metrics.update(diagnostics.groups(uids, rewards))
        self._cut = [reason == "length" for reason in generator_output["stop_reasons"]]
        return super().postprocess_generator_output(generator_output, uids)

    def convert_to_training_input(self, generator_output: Any, uids: list[str]) -> Any:
        batch = super().convert_to_training_input(generator_output, uids)
        asked = self.generator.asker.image_tokens
        samples = self.recipe.rollout.samples_per_maze
        features = [int(grid.prod(-1).sum()) for grid in batch["image_grid_thw"].tensors]
        found = diagnostics.same_image_tokens(
            asked=[asked[f"{uid}_{index % samples}"] for index, uid in enumerate(uids)],
            trained=(batch["sequences"] == self.image_token).sum(1).tolist(),
            features=[patches // self.patches_per_token for patches in features],
            cut=self._cut,
        )
        self.all_metrics.update(found)
        return batch

    def save_checkpoints(self) -> str:
        path = super().save_checkpoints()
        relative = Path(path).relative_to(self.run_dir).as_posix()
        lineage.append(self.run_dir, "checkpoints", {"step": self.global_step, "folder": relative})
        self.events.emit("checkpoint", step=self.global_step, folder=relative)
        return path

    def load_checkpoints(self) -> tuple[int, str | None]:
        """SkyRL stores an exhausted sampler at the end of an epoch, and a resume there skips the next one.

        A new sampler goes through the epochs that are over, so that the next one has the order that it would
        have had.
        """
        step, path = super().load_checkpoints()
        epochs_over, rest = divmod(step, len(self.train_dataloader))
        if step and not rest:
            self._build_train_dataloader_and_compute_training_steps()
            for _ in range(epochs_over):
                for _ in self.train_dataloader:
                    pass
        if step >= self.recipe.optimization.steps:
            self.cfg.trainer.epochs = 0  # only the last evaluation may be missing; no step is left
        return step, path

    def _cleanup_old_checkpoints(self) -> None:
        """The checkpoints are on a shared file system: once is enough, and no worker per node is started."""
        cleanup_old_checkpoints(self.cfg.trainer.ckpt_path, self.cfg.trainer.max_ckpts_to_keep)
