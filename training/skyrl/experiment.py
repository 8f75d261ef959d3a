"""One run on SkyRL: data, environment, engines, trainer; returns the adapter of the last step."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ray
import skyrl.train.generators.skyrl_vlm_generator as vlm_generator
from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.backends.skyrl_train.utils.ppo_utils import sync_registries
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl_gym.envs import register

from training import checkpoints, lineage
from training.checkpoints.store import Fence
from training.errors import DataError
from training.events import EventLog
from training.files import write_json
from training.recipe import Recipe
from training.skyrl import config
from training.skyrl.backend import Backend
from training.skyrl.client import IMAGE_TOKEN, LocalClient
from training.skyrl.dataset import TaskDataset
from training.skyrl.engine import EngineOptions, RolloutEngine
from training.skyrl.evaluation import Evaluator
from training.skyrl.generator import SeededGenerator
from training.skyrl.gym_env import ENV_ID
from training.skyrl.ranks import ADAPTER, PolicyRank
from training.skyrl.tracking import JsonlTracker
from training.skyrl.trainer import MazeTrainer


class MazeExperiment(BasePPOExp):
    """SkyRL's experiment with our pieces in the places it provides for them."""

    def __init__(
        self,
        recipe: Recipe,
        run_dir: Path,
        shared_dir: Path,
        backend: Backend,
        events: EventLog,
        fence: Fence,
    ):
        self.recipe, self.run_dir, self.backend, self.events = recipe, run_dir, backend, events
        self.fence, self.store = fence, checkpoints.of_run(run_dir, fence)
        chosen = dict(backend.trainer_overrides)
        if recipe.rollout.engine == "skyrl-servers":
            chosen |= backend.server_overrides
        keys = config.overrides(recipe, run_dir=run_dir, shared_dir=shared_dir, backend_overrides=chosen)
        cfg = config.build(keys)
        if recipe.rollout.engine == "skyrl-servers" and backend.server_executor:
            # SkyRL's validation does not know every executor of vLLM.
            cfg.generator.inference_engine.distributed_executor_backend = backend.server_executor
        super().__init__(cfg)
        self._restrict_tokens()

    def _restrict_tokens(self) -> None:
        """A small policy may sample an image token, which no trainer can replay."""
        if self.recipe.rollout.text_tokens_only:
            allowed = text_token_ids(self.tokenizer)
            write_json(self.run_dir / "generation.json", {"allowed_token_ids": allowed})
            for params in (self.cfg.generator.sampling_params, self.cfg.generator.eval_sampling_params):
                params.additional_kwargs = {"allowed_token_ids": allowed}

    def get_train_dataset(self) -> TaskDataset:
        return TaskDataset(lineage.read_drawn(self.run_dir, "train"), self.recipe)

    def get_eval_dataset(self) -> TaskDataset:
        return TaskDataset(lineage.read_drawn(self.run_dir, "dev"), self.recipe)

    def get_tracker(self) -> JsonlTracker:
        return JsonlTracker(self.run_dir, self.recipe, self.events)

    def get_inference_client(self) -> Any:
        self.events.emit("stage", name="engines")
        if self.recipe.rollout.engine == "skyrl-servers":
            return super().get_inference_client()
        client = LocalClient(
            self._start_engines(),
            self.tokenizer,
            _image_processor(self.cfg.trainer.policy.model.path),
            self.cfg.trainer.policy.model.path,
        )
        vlm_generator.decode_mm_kwargs = client.decode_mm_kwargs
        return client

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> SeededGenerator:
        return SeededGenerator(
            run_seed=self.recipe.seed,
            image_token=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
            generator_cfg=cfg.generator,
            skyrl_gym_cfg=cfg.environment.skyrl_gym,
            inference_engine_client=inference_engine_client,
            tokenizer=tokenizer,
            policy_model_name=resolve_policy_model_name(cfg),
        )

    def _start_engines(self) -> list[Any]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        recipe, group = self.recipe, self.colocate_pg
        bundles = group.reordered_bundle_indices
        spacing = len(bundles) // recipe.rollout.engines
        adapters = self.run_dir / "lora_versions"
        engines = []
        for index in range(recipe.rollout.engines):
            options = EngineOptions(
                model_path=self.cfg.trainer.policy.model.path,
                dtype=recipe.policy.dtype,
                max_model_len_tokens=recipe.rollout.max_model_len_tokens,
                max_images=recipe.environment.max_turns,
                lora_rank=recipe.policy.lora_rank,
                adapters_dir=str(adapters),
                seed=recipe.seed + index,
                extra={**self.backend.engine_arguments, **self._memory()},
            )
            placement = PlacementGroupSchedulingStrategy(
                group.pg, placement_group_bundle_index=bundles[index * spacing]
            )
            actor = ray.remote(RolloutEngine).options(
                num_cpus=0.2,
                num_gpus=0.1,
                scheduling_strategy=placement,
                runtime_env={"env_vars": dict(self.backend.engine_environment)},
            )
            engines.append(actor.remote(options))
        if not self.backend.engines_start_beside_models:
            ray.get([engine.ready.remote() for engine in engines])
        return engines

    def _memory(self) -> dict[str, Any]:
        if self.backend.name == "cuda":
            return {"gpu_memory_utilization": self.recipe.rollout.gpu_memory_utilization}
        return {"kv_cache_memory_bytes": self.recipe.rollout.kv_cache_mib * 2**20}

    def get_trainer(self, **pieces: Any) -> MazeTrainer:
        trainer = MazeTrainer(**pieces)
        trainer.recipe, trainer.run_dir, trainer.events = self.recipe, self.run_dir, self.events
        trainer.fence, trainer.store = self.fence, self.store
        trainer.policy_rank = self.backend.policy_rank or PolicyRank
        trainer.image_token = self.tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
        trainer.patches_per_token = _patches_per_token(self.cfg.trainer.policy.model.path)
        trainer.evaluator = Evaluator(
            client=pieces["inference_engine_client"],
            generator=pieces["generator"],
            recipe=self.recipe,
            run_dir=self.run_dir,
            events=self.events,
            sampling=self.cfg.generator.eval_sampling_params,
            backend_name=self.cfg.generator.inference_engine.backend,
        )
        self.events.emit("stage", name="models")
        return trainer


def run(
    recipe: Recipe,
    run_dir: Path,
    shared_dir: Path,
    backend: Backend,
    events: EventLog,
    fence: Fence = nullcontext,
) -> Path:
    """Train to the last step (resuming from the newest checkpoint) and return the adapter's folder."""
    register(id=ENV_ID, entry_point="training.skyrl.gym_env:GameEnv")
    sync_registries()
    experiment = MazeExperiment(recipe, run_dir, shared_dir, backend, events, fence)
    experiment.run()
    step = experiment.trainer.global_step
    adapter = experiment.store.path(step) / ADAPTER
    if step != recipe.optimization.steps or not adapter.is_dir():
        raise DataError(
            f"training ended at step {step} of {recipe.optimization.steps}"
            + ("" if adapter.is_dir() else f" without an adapter in {adapter}"),
            "submit the run again: it resumes from its newest checkpoint",
        )
    return adapter


def text_token_ids(tokenizer: Any) -> list[int]:
    """Every id of the vocabulary that is not special, and the end of turn."""
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    return sorted(set(tokenizer.get_vocab().values()) - special | {tokenizer.eos_token_id})


def _patches_per_token(model_path: str) -> int:
    """How many vision patches are merged into one image token."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(model_path).vision_config.spatial_merge_size ** 2


def _image_processor(model_path: str) -> Any:
    from transformers import AutoImageProcessor

    if not os.path.isdir(model_path):
        raise DataError(f"the base model {model_path} is not a folder", "download or make it first")
    return AutoImageProcessor.from_pretrained(model_path)
