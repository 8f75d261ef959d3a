"""A Qwen3-VL of about 1.5 million parameters, with the file layout of a real checkpoint.

One vision patch and one language token stand for one maze cell (16 x 16 px, no spatial merge). Most of the
weights sit in the vision tower: paths are found there, by attention over the cells of one image, once per
image; the language model then only has to read the current image and to decide.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rehearsal.tiny import tokenizer as words

if TYPE_CHECKING:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

CELL_PX = 16
"""Side of one maze cell and of one vision patch, in pixels."""
GRID = 4
"""Cells per side of the learned position table (larger images are interpolated)."""
WIDTH = 128
"""Width of both towers, so that merged image features have it too."""
HEAD_DIM = 32
"""Smallest head size that vLLM's CPU attention kernels accept."""


def configuration() -> Qwen3VLConfig:
    """Architecture of the tiny policy."""
    from transformers import Qwen3VLConfig

    half = HEAD_DIM // 2
    section = half // 3
    return Qwen3VLConfig(
        text_config={
            "vocab_size": len(words.VOCABULARY),
            "hidden_size": WIDTH,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": HEAD_DIM,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
            "initializer_range": 0.05,
            "pad_token_id": words.token_id(words.PAD),
            "eos_token_id": words.token_id(words.IM_END),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [half - 2 * section, section, section],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 6,
            "hidden_size": WIDTH,
            "num_heads": 4,
            "intermediate_size": 256,
            "patch_size": CELL_PX,
            "spatial_merge_size": 1,
            "temporal_patch_size": 2,
            "out_hidden_size": WIDTH,
            "num_position_embeddings": GRID * GRID,
            "deepstack_visual_indexes": [1],
            "initializer_range": 0.05,
        },
        image_token_id=words.token_id(words.IMAGE),
        video_token_id=words.token_id(words.VIDEO),
        vision_start_token_id=words.token_id(words.VISION_START),
        vision_end_token_id=words.token_id(words.VISION_END),
        tie_word_embeddings=False,
    )


def initialize(seed: int) -> Qwen3VLForConditionalGeneration:
    """A randomly initialized policy, float32; equal seeds give equal weights."""
    import torch
    from transformers import GenerationConfig, Qwen3VLForConditionalGeneration

    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(configuration())
    model.generation_config = GenerationConfig(
        eos_token_id=[words.token_id(words.IM_END)], pad_token_id=words.token_id(words.PAD)
    )
    return model


def save(model: Any, out_dir: Path) -> None:
    """Write weights, tokenizer, image processor and chat template: all that a Hugging Face loader expects."""
    from transformers import Qwen3VLProcessor, Qwen3VLVideoProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    settings = {
        "patch_size": CELL_PX,
        "temporal_patch_size": 2,
        "merge_size": 1,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"shortest_edge": CELL_PX**2, "longest_edge": (CELL_PX * 16) ** 2},
    }
    processor = Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessorPil(**settings),
        tokenizer=words.build_tokenizer(),
        video_processor=Qwen3VLVideoProcessor(**settings),
        chat_template=words.CHAT_TEMPLATE,
    )
    out_dir.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out_dir)
    processor.save_pretrained(out_dir)


def build(out_dir: Path, seed: int) -> Qwen3VLForConditionalGeneration:
    """Initialize a policy from `seed` and save it in `out_dir`."""
    model = initialize(seed)
    save(model, Path(out_dir))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="write an untrained tiny policy")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    model = build(options.out, options.seed)
    print(f"{options.out}: {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
