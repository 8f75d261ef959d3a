"""A recipe as SkyRL's configuration: dotted keys, validated by SkyRL itself."""

from pathlib import Path
from typing import Any

from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.utils import validate_cfg

from training.recipe import Recipe
from training.skyrl.gym_env import ENV_ID


def overrides(
    recipe: Recipe, *, run_dir: Path, shared_dir: Path, backend_overrides: dict[str, Any]
) -> dict[str, Any]:
    """Every SkyRL key that differs from its default; `backend_overrides` come from the substrate."""
    env, rollout, opt = recipe.environment, recipe.rollout, recipe.optimization
    top = recipe.topology
    keys = {
        "data.train_data": ["rows"],
        "data.val_data": ["rows"],
        "data.dataloader.num_workers": 0,
        "environment.env_class": ENV_ID,
        **_trainer(recipe, run_dir, shared_dir),
        "trainer.placement.policy_num_nodes": top.worker_nodes,
        "trainer.placement.policy_num_gpus_per_node": top.gpus_per_node,
        "trainer.placement.ref_num_nodes": top.worker_nodes,
        "trainer.placement.ref_num_gpus_per_node": top.gpus_per_node,
        "trainer.placement.critic_num_gpus_per_node": top.gpus_per_node,
        "generator.inference_engine.num_engines": top.ranks,  # SkyRL asks for this, also where it starts none
        "generator.inference_engine.tensor_parallel_size": 1,
        "generator.inference_engine.model_dtype": recipe.policy.dtype,
        "generator.inference_engine.gpu_memory_utilization": rollout.gpu_memory_utilization,
        "generator.inference_engine.engine_init_kwargs.max_model_len": rollout.max_model_len_tokens,
        "generator.n_samples_per_prompt": rollout.samples_per_maze,
        "generator.sampling_params.max_generate_length": rollout.max_new_tokens,
        "generator.sampling_params.temperature": rollout.temperature,
        "generator.sampling_params.logprobs": 0,
        "generator.eval_sampling_params.max_generate_length": rollout.max_new_tokens,
        "generator.eval_sampling_params.temperature": 0.0,
        "generator.eval_n_samples_per_prompt": 1,
        "generator.max_turns": env.max_turns,
        "generator.max_input_length": rollout.max_input_tokens,
        "generator.vision_language_generator": True,
        "generator.batched": False,
        "trainer.micro_forward_batch_size_per_gpu": opt.micro_batch_episodes,
        "trainer.micro_train_batch_size_per_gpu": opt.micro_batch_episodes,
    }
    return keys | backend_overrides


def _trainer(recipe: Recipe, run_dir: Path, shared_dir: Path) -> dict[str, Any]:
    opt, lora = recipe.optimization, recipe.policy
    model = "trainer.policy.model"
    optimizer = "trainer.policy.optimizer_config"
    return {
        f"{model}.path": str(shared_dir / recipe.policy.base_model),
        f"{model}.lora.rank": lora.lora_rank,
        f"{model}.lora.alpha": lora.lora_alpha,
        f"{model}.lora.exclude_modules": lora.exclude_modules,
        f"{model}.lora.lora_sync_path": str(run_dir / "lora_sync"),
        f"{model}.lora.max_loras": 1,
        f"{optimizer}.lr": opt.learning_rate,
        f"{optimizer}.num_warmup_steps": opt.warmup_steps,
        f"{optimizer}.scheduler": opt.schedule,
        f"{optimizer}.max_grad_norm": opt.max_grad_norm,
        "trainer.seed": recipe.seed,
        "trainer.strategy": "fsdp",
        "trainer.placement.colocate_all": True,
        "trainer.remove_microbatch_padding": False,
        "trainer.epochs": -(-opt.steps // (recipe.data.train_mazes // opt.mazes_per_step)),
        "trainer.max_training_steps": opt.steps,
        "trainer.train_batch_size": opt.mazes_per_step,
        "trainer.policy_mini_batch_size": opt.mini_batch_mazes,
        "trainer.max_prompt_length": 512,
        "trainer.algorithm.advantage_estimator": "grpo",
        "trainer.algorithm.use_kl_loss": False,
        "trainer.algorithm.loss_reduction": "token_mean_legacy",
        "trainer.logger": "console",
        "trainer.print_example_interval": -1,
        "trainer.resume_mode": "latest",
        "trainer.eval_interval": recipe.evaluation.every_steps,
        "trainer.eval_before_train": True,
        "trainer.eval_batch_size": 64,
        "trainer.ckpt_interval": recipe.checkpoints.every_steps,
        "trainer.ckpt_path": str(run_dir / "checkpoints"),
        "trainer.export_path": str(run_dir / "exports"),
        "trainer.log_path": str(run_dir / "logs"),
    }


def build(keys: dict[str, Any]) -> SkyRLTrainConfig:
    """Let SkyRL parse and check them. Raises its own errors for values that recipes cannot hold."""
    cfg = SkyRLTrainConfig.from_cli_overrides(keys)
    validate_cfg(cfg)
    return cfg
