"""The base model as an adapter sees it: a digest, and the linear layers that LoRA may attach to."""

import hashlib
import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from training.errors import DataError
from training.files import read_object, required

_CHUNK_BYTES = 4 * 2**20
_REMEDY = "give the directory of the base checkpoint that the adapter was trained on"
HEAD = "lm_head"
CONFIG = "config.json"


@dataclass(frozen=True)
class Base:
    """A Qwen3-VL checkpoint.

    `digest` identifies weights and config; `linears` maps each linear layer's name, as PEFT sees it,
    to its (inputs, outputs).
    """

    digest: str
    linears: dict[str, tuple[int, int]]

    @classmethod
    def read(cls, directory: Path) -> "Base":
        """Read a checkpoint directory; hashing 17 GB of weights takes about a minute.

        Raises DataError if it holds no config.json or no safetensors weights.
        """
        return cls(digest(directory), linears(read_config(directory), directory / CONFIG))

    def targeted(self, target: str | list[str], exclude: str | list[str] | None) -> list[str]:
        """Names of the linear layers that a PEFT config with these fields wraps, sorted.

        The rules are PEFT's: a string is a regular expression for the whole name, a list holds names or
        their endings, and "all-linear" leaves out the output head.
        """
        if target == "all-linear":
            chosen = {name for name in self.linears if name != HEAD}
        else:
            chosen = {name for name in self.linears if _matches(name, target)}
        return sorted(name for name in chosen if not (exclude and _matches(name, exclude)))


def is_vision(module: str) -> bool:
    """Whether a layer belongs to the vision tower, which a server applies LoRA to only when told so."""
    return ".visual." in f".{module}."


def digest(directory: Path) -> str:
    """SHA-256 (hexadecimal) over config.json and every safetensors file: their names and contents."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise DataError(f"{directory} holds no safetensors weights", _REMEDY)
    entries = [[path.name, _sha256(path)] for path in [*files, directory / CONFIG]]
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def read_config(directory: Path) -> dict[str, Any]:
    """A checkpoint's config.json."""
    path = directory / CONFIG
    try:
        return read_object(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})", _REMEDY) from error


def linears(config: dict[str, Any], source: Path) -> dict[str, tuple[int, int]]:
    """Every linear layer of a Qwen3-VL config with its (inputs, outputs).

    Raises DataError for another architecture: shapes could not be checked there.
    """
    if config.get("model_type") != "qwen3_vl":
        raise DataError(
            f"{source}: model_type is {config.get('model_type')!r}, expected 'qwen3_vl'",
            "adapters are checked against dense Qwen3-VL bases only",
        )
    return _text(config, source) | _vision(config, source)


def _text(config: dict[str, Any], source: Path) -> dict[str, tuple[int, int]]:
    size = partial(_size, config, source, "text_config")
    width, inner, heads = size("hidden_size"), size("intermediate_size"), size("num_attention_heads")
    head = size("head_dim") if config["text_config"].get("head_dim") else width // heads
    queries, keys = heads * head, size("num_key_value_heads") * head
    layer = {
        "self_attn.q_proj": (width, queries),
        "self_attn.k_proj": (width, keys),
        "self_attn.v_proj": (width, keys),
        "self_attn.o_proj": (queries, width),
        "mlp.gate_proj": (width, inner),
        "mlp.up_proj": (width, inner),
        "mlp.down_proj": (inner, width),
    }
    layers = {
        f"model.language_model.layers.{index}.{name}": shape
        for index in range(size("num_hidden_layers"))
        for name, shape in layer.items()
    }
    return layers | {HEAD: (width, size("vocab_size"))}


def _vision(config: dict[str, Any], source: Path) -> dict[str, tuple[int, int]]:
    size = partial(_size, config, source, "vision_config")
    width, inner = size("hidden_size"), size("intermediate_size")
    merged = width * size("spatial_merge_size") ** 2
    block = {
        "attn.qkv": (width, 3 * width),
        "attn.proj": (width, width),
        "mlp.linear_fc1": (width, inner),
        "mlp.linear_fc2": (inner, width),
    }
    blocks = {
        f"model.visual.blocks.{index}.{name}": shape
        for index in range(size("depth"))
        for name, shape in block.items()
    }
    deepstack = range(len(required(config, list, "vision_config", "deepstack_visual_indexes", source=source)))
    mergers = ["merger", *(f"deepstack_merger_list.{index}" for index in deepstack)]
    for merger in mergers:
        blocks[f"model.visual.{merger}.linear_fc1"] = (merged, merged)
        blocks[f"model.visual.{merger}.linear_fc2"] = (merged, size("out_hidden_size"))
    return blocks


def _size(config: dict[str, Any], source: Path, *keys: str) -> int:
    found = required(config, int, *keys, source=source)
    if found < 1:
        raise DataError(f"{source}: {'.'.join(keys)} is {found}, no size of a model", _REMEDY)
    return found


def _matches(name: str, pattern: str | list[str]) -> bool:
    if isinstance(pattern, str):
        return re.fullmatch(pattern, name) is not None
    return any(name == ending or name.endswith("." + ending) for ending in pattern)


def _sha256(path: Path) -> str:
    state = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                state.update(chunk)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from error
    return state.hexdigest()
