"""Runs in the training environment: a tiny base, an adapter as SkyRL exports it, and what transformers and
PEFT say of the first published mazes. `python -m tests.serving.peft_export FOLDER`
"""

import json
import sys
from dataclasses import asdict
from enum import Enum
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file

from rehearsal.tiny import model as tiny
from training.mazes import published
from training.render import draw

CANARIES = 6
ANSWER_TOKENS = 4


def main(folder: Path) -> None:
    """Write base/, export/ and references.json."""
    from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

    tiny.build(folder / "base", seed=0)
    base = Qwen3VLForConditionalGeneration.from_pretrained(folder / "base", dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder / "base")
    torch.manual_seed(1)
    config = LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules="all-linear",
        exclude_modules=".*visual.*",
        bias="none",
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(base, config)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=1.0)
    export(adapted, folder / "export")
    references = [canary(adapted, processor, maze) for maze in published("easy")[:CANARIES]]
    (folder / "references.json").write_text(json.dumps(references))


def export(adapted: torch.nn.Module, folder: Path) -> None:
    """The two files of SkyRL's checkpoints: tensors by PEFT's names, the config with targets as a list."""
    folder.mkdir()
    save_file(
        {name: tensor.contiguous() for name, tensor in get_peft_model_state_dict(adapted).items()},
        folder / "adapter_model.safetensors",
    )
    config = asdict(adapted.peft_config["default"])
    config = {key: value.value if isinstance(value, Enum) else value for key, value in config.items()}
    config["target_modules"] = list(config["target_modules"])
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=4))


@torch.no_grad()
def canary(adapted: torch.nn.Module, processor: object, maze: object) -> dict[str, object]:
    """Greedy answer to the maze's first picture, vision tokens excluded, with its log-probabilities."""
    from PIL import Image

    image = Image.fromarray(draw(maze, maze.start))
    chat = [{"role": "user", "content": [{"type": "image"}]}]
    text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    inputs = processor(text=[text], images=[image], return_tensors="pt")
    config = adapted.config
    banned = [config.image_token_id, config.video_token_id]
    banned += [config.vision_start_token_id, config.vision_end_token_id]
    token_ids, logprobs = [], []
    ids, types = inputs["input_ids"], inputs.get("mm_token_type_ids")
    while len(token_ids) < ANSWER_TOKENS and (
        not token_ids or token_ids[-1] != config.text_config.eos_token_id
    ):
        extra = {} if types is None else {"mm_token_type_ids": types}
        logits = adapted(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=inputs["pixel_values"],
            image_grid_thw=inputs["image_grid_thw"],
            **extra,
        ).logits[0, -1]
        scores = torch.log_softmax(logits, dim=-1)
        allowed = scores.clone()
        allowed[banned] = -torch.inf
        token = int(allowed.argmax())
        token_ids.append(token)
        logprobs.append(float(scores[token]))
        ids = torch.cat([ids, torch.tensor([[token]])], dim=1)
        types = None if types is None else torch.cat([types, torch.zeros(1, 1, dtype=types.dtype)], dim=1)
    return {"key": f"{maze.digest}/0", "token_ids": token_ids, "logprobs": logprobs}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
