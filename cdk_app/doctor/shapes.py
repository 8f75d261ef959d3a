"""A base model's shape and its numbers of parameters, from its config.json or from a table."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdk_app.doctor.finding import Unknown

Linear = tuple[int, int]
"""(inputs, outputs) of a linear layer."""


@dataclass(frozen=True)
class Vision:
    """The vision tower: a transformer, a merger into the language model, and one more per deepstack level."""

    layers: int
    hidden: int
    intermediate: int
    outputs: int
    positions: int
    patch_values: int
    merge: int
    deepstack: int

    @property
    def linears(self) -> list[Linear]:
        h, wide = self.hidden, self.hidden * self.merge**2
        block = [(h, 3 * h), (h, h), (h, self.intermediate), (self.intermediate, h)]
        return block * self.layers + [(wide, wide), (wide, self.outputs)] * (1 + self.deepstack)

    @property
    def parameters(self) -> int:
        linears = sum(i * o + o for i, o in self.linears)
        norms = 4 * self.hidden * self.layers + 2 * self.hidden
        norms += 2 * self.hidden * self.merge**2 * self.deepstack
        patches = self.patch_values * self.hidden + self.hidden
        return linears + norms + patches + self.positions * self.hidden


@dataclass(frozen=True)
class Shape:
    """A Qwen3-VL: the language model's numbers and its vision tower."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    vision: Vision

    @property
    def linears(self) -> list[Linear]:
        """Those of the language layers, without the output head."""
        h, q, kv = self.hidden, self.heads * self.head_size, self.kv_heads * self.head_size
        layer = [(h, q), (h, kv), (h, kv), (q, h), (h, self.intermediate), (h, self.intermediate)]
        return [*layer, (self.intermediate, h)] * self.layers

    @property
    def layer_parameters(self) -> int:
        linears = sum(i * o for i, o in self.linears) // self.layers
        return linears + 2 * self.hidden + 2 * self.head_size

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        language = self.layer_parameters * self.layers + self.embedding_parameters + self.hidden
        return language + self.vision.parameters

    def lora_parameters(self, rank: int, exclude: str) -> int:
        """Of an adapter on all linear layers but the head; `exclude` is the recipe's regular expression."""
        linears = list(self.linears)
        if not re.fullmatch(exclude, "model.visual.blocks.0.attn.qkv"):
            linears += self.vision.linears
        return rank * sum(i + o for i, o in linears)


KNOWN = {
    "visgym-mixed-qwen3vl": Shape(
        layers=36,
        hidden=4096,
        intermediate=12_288,
        heads=32,
        kv_heads=8,
        head_size=128,
        vocabulary=151_936,
        tied=False,
        vision=Vision(
            layers=27,
            hidden=1152,
            intermediate=4304,
            outputs=4096,
            positions=2304,
            patch_values=1536,
            merge=2,
            deepstack=3,
        ),
    )
}
"""VisGym's checkpoint is a Qwen3-VL-8B-Instruct: 8,767,123,696 parameters when transformers makes it."""


def find(base_model: str, shared: Path) -> Shape | Unknown:
    """From the model's folder on the shared file system when it is here, else from the table."""
    config = shared / base_model / "config.json"
    if config.is_file():
        try:
            return from_config(json.loads(config.read_text(encoding="utf-8")))
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            return Unknown(f"{config} is not of a Qwen3-VL: {error!r}", "name a Qwen3-VL base model")
    known = KNOWN.get(base_model.rpartition("/")[2])
    return known or Unknown(
        f"there is no {config}, and {base_model!r} is in no table here", "name the folder with --shared"
    )


def from_config(config: dict[str, Any]) -> Shape:
    """The shape in a Qwen3-VL's config.json."""
    text, vision = config["text_config"], config["vision_config"]
    return Shape(
        layers=text["num_hidden_layers"],
        hidden=text["hidden_size"],
        intermediate=text["intermediate_size"],
        heads=text["num_attention_heads"],
        kv_heads=text["num_key_value_heads"],
        head_size=text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"],
        vocabulary=text["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        vision=Vision(
            layers=vision["depth"],
            hidden=vision["hidden_size"],
            intermediate=vision["intermediate_size"],
            outputs=vision["out_hidden_size"],
            positions=vision["num_position_embeddings"],
            patch_values=vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2,
            merge=vision["spatial_merge_size"],
            deepstack=len(vision["deepstack_visual_indexes"]),
        ),
    )
