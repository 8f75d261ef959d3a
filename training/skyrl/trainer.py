"""SkyRL's trainer with our evaluation, diagnostics, data order and checkpoints: each step can be repeated."""

import asyncio
import time
from pathlib import Path
from typing import Any

import ray
from skyrl.train.trainer import RayPPOTrainer

from training import diagnostics, exports, lineage, seal, trace
from training.checkpoints.store import Fence, Store
from training.events import EventLog
from training.recipe import Recipe
from training.sampler import Sampler
from training.seeds import derive
from training.skyrl import ranks
from training.skyrl.dataset import StepLoader
from training.skyrl.evaluation import Evaluator


class MazeTrainer(RayPPOTrainer):
    """The fields are set by the experiment before training starts.

    `image_token` is an id of the vocabulary; the vision tower merges `patches_per_token` patches into one.
    """

    evaluator: Evaluator
    events: EventLog
    recipe: Recipe
    run_dir: Path
    store: Store
    fence: Fence
    policy_rank: type
    image_token: int
    patches_per_token: int
    _resumed_from: int | None = None

    def build_models(self, PolicyWorker: Any, CriticWorker: Any, RefWorker: Any) -> None:
        super().build_models(ray.remote(num_gpus=1)(self.policy_rank), CriticWorker, RefWorker)
        sync = self.dispatch.save_weights_for_sampler

        async def announced(*args: Any, **kwargs: Any) -> None:
            self._phase("sync")
            await sync(*args, **kwargs)

        self.dispatch.save_weights_for_sampler = announced

    def _phase(self, name: str) -> None:
        """Say what begins: whoever watches the run sees that it moves, and where."""
        self.events.emit("phase", step=self.global_step, name=name)

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        cfg = self.cfg.trainer
        sampler = Sampler(len(self.train_dataset), cfg.train_batch_size, cfg.seed)
        self.train_dataloader = StepLoader(self.train_dataset, sampler)
        self.total_training_steps = min(len(self.train_dataloader) * cfg.epochs, cfg.max_training_steps)

    async def eval(self, vllm_metrics_scraper: Any = None) -> dict[str, float]:
        """Play dev; before the first and after the last step also the sealed splits, once each.

        SkyRL asks again when it resumes, also at steps that are not evaluated.
        """
        step, last = self.global_step, self.recipe.optimization.steps
        if step % self.recipe.evaluation.every_steps and step != last:
            return {}
        loop = asyncio.get_running_loop()

        async def play(split: str, label: str) -> dict[str, Any]:
            with self.fence():
                pass  # a driver that lost the run must not write among the records of the other
            return await asyncio.to_thread(self.evaluator.play, split, label, loop)

        dev = await play("dev", f"dev-{step:04d}")
        if step in (0, last):
            for split in seal.SEALED:
                await play(split, seal.label("baseline" if step == 0 else "final", split))
        return {"eval/dev/solve_rate": dev["solve_rate"], "eval/dev/format_rate": dev["format_rate"]}

    async def generate(self, input_batch: Any) -> Any:
        """A step begins: whatever may draw in it is seeded by it, and the engines remember nothing."""
        self._began = time.monotonic()
        self._phase("rollout")
        seed = derive(self.recipe.seed, "step", self.global_step)
        ranks.reseed(seed)
        ray.get(self.policy_model.async_run_ray_method("pass_through", "begin_step", seed))
        await self.inference_engine_client.reset_prefix_cache()
        return await super().generate(input_batch)

    def postprocess_generator_output(self, generator_output: Any, uids: list[str]) -> Any:
        rewards = [float(sum(r) if isinstance(r, list) else r) for r in generator_output["rewards"]]
        self.all_metrics.update(diagnostics.groups(uids, rewards))
        self._cut = [reason == "length" for reason in generator_output["stop_reasons"]]
        self._row = trace.of_step(
            self.global_step,
            rows=uids,
            tokens=generator_output["response_ids"],
            logprobs=generator_output["rollout_logprobs"],
            rewards=rewards,
        )
        trace.append(self.run_dir / trace.FILE, self._row)
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

    def train_critic_and_policy(self, data: Any) -> Any:
        self._phase("update")
        return super().train_critic_and_policy(data)

    def save_checkpoints(self) -> str:
        """SkyRL also asks at the end, for the step that it resumed from when none was left."""
        if self.global_step == self._resumed_from:
            return str(self.store.path(self.global_step))
        self._phase("checkpoint")
        timings = {**self.all_timings, "step": time.monotonic() - self._began}
        logs = {**self.all_metrics, **{f"timing/{k}": v for k, v in timings.items()}}
        state = {
            "seed": self.recipe.seed,
            "ranks": self.recipe.topology.ranks,
            "metrics": self.tracker.row(logs, self.global_step),
        }
        with self.store.writing(self.global_step, state) as folder:
            self.dispatch.save_checkpoint("policy", str(folder))
            state["trace"] = {**self._row, "adapter": exports.digest(folder / ranks.ADAPTER)}
        trace.append(self.run_dir / trace.FILE, state["trace"])
        path = self.store.path(self.global_step)
        relative = path.relative_to(self.run_dir).as_posix()
        lineage.append(self.run_dir, "checkpoints", {"step": self.global_step, "folder": relative})
        self.events.emit("checkpoint", step=self.global_step, folder=relative)
        return str(path)

    def flush_pending_metrics(self) -> None:
        """Called for a step that failed: it is none, and is taken again by the next attempt."""

    def load_checkpoints(self) -> tuple[int, str | None]:
        """Go on from the newest whole checkpoint; what the run says of later steps is taken back."""
        self.store.sweep()
        found = self.store.newest()
        for fault in found.faults:
            self.events.emit("passed_over", message=fault)
        if found.checkpoint is None:
            self._take_back(0, {})
            return 0, None
        step, state = found.checkpoint.step, found.checkpoint.state
        self._resumed_from = step
        self.dispatch.load_checkpoint("policy", str(found.checkpoint.folder))
        self._take_back(step, state)
        self.train_dataloader.next_step = step + 1
        if step >= self.recipe.optimization.steps:
            self.cfg.trainer.epochs = 0  # only the last evaluation may be missing; no step is left
        self.events.emit("resumed", step=step, checkpoint=found.checkpoint.digest)
        return step, str(found.checkpoint.folder)

    def _take_back(self, step: int, state: dict[str, Any]) -> None:
        with self.fence():
            for name, key in ((trace.FILE, "trace"), ("metrics.jsonl", "metrics")):
                trace.rewind(self.run_dir / name, step, state.get(key))
        with lineage.changing(self.run_dir) as manifest:
            manifest["checkpoints"] = [one for one in manifest["checkpoints"] if one["step"] <= step]
