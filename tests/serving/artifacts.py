"""A base checkpoint and an adapter export in the layouts of transformers and PEFT, small and torch-free."""

import json
from pathlib import Path

import numpy as np

from serving import tensors
from serving.base import Base

CONFIG = {
    "model_type": "qwen3_vl",
    "text_config": {
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 6,
        "num_hidden_layers": 2,
        "vocab_size": 32,
    },
    "vision_config": {
        "depth": 1,
        "hidden_size": 4,
        "intermediate_size": 8,
        "spatial_merge_size": 2,
        "out_hidden_size": 8,
        "deepstack_visual_indexes": [0],
    },
}
# What SkyRL writes for `all-linear` with the vision tower excluded: PEFT lists the tower's endings too.
EXPORTED = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "peft_version": "0.18.1",
    "base_model_name_or_path": "somewhere/base",
    "r": 4,
    "lora_alpha": 8,
    "lora_dropout": 0.0,
    "bias": "none",
    "target_modules": [
        *("v_proj", "q_proj", "o_proj", "k_proj", "up_proj", "gate_proj", "down_proj"),
        *("qkv", "attn.proj", "linear_fc1", "linear_fc2"),
    ],
    "exclude_modules": ".*visual.*",
    "init_lora_weights": True,
    "use_rslora": False,
    "use_dora": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "runtime_config": {"ephemeral_gpu_offload": False},
    "megatron_core": "megatron.core",
    "qalora_group_size": 16,
}


def language_weights(base: Base, rank: int = 4, seed: int = 0) -> dict[str, tensors.Tensor]:
    """LoRA tensors for every language layer, values from a seed."""
    draw = np.random.default_rng(seed)
    weights = {}
    for module in base.targeted("all-linear", ".*visual.*"):
        inputs, outputs = base.linears[module]
        for side, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            name = f"base_model.model.{module}.lora_{side}.weight"
            weights[name] = tensors.from_array(draw.normal(size=shape))
    return weights


def write_export(
    directory: Path, weights: dict[str, tensors.Tensor], config: dict[str, object] = EXPORTED
) -> Path:
    """A trainer's export folder."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_model.safetensors").write_bytes(tensors.serialize(weights))
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=4))
    return directory
