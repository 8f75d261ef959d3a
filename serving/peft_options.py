"""What an adapter_config.json may say, and its one canonical form.

A PEFT config has dozens of options, many of which a server ignores without a word. Only plain LoRA is
accepted: every option that would change the result must hold its neutral value, known to us or not.
"""

import json
import re
import sys
from dataclasses import dataclass

from serving.base import Base, is_vision
from training.errors import DataError
from training.files import parse_json

# Options that a plain adapter fixes, with the values under which training and serving agree.
_REQUIRED: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM",),
    "bias": ("none",),
    # Other initialisations (pissa, olora, loftq, corda) change the base weights that the adapter adds to.
    "init_lora_weights": (True, False, "gaussian", "orthogonal"),
}
# Options that say nothing about the served result.
_INERT = {
    "base_model_name_or_path",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
}
_OURS = {"r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules"}
_MAX_PATTERN_CHARACTERS = 300


@dataclass(frozen=True)
class Options:
    """The options of a plain LoRA adapter; its update is scaled by alpha/rank, or alpha/sqrt(rank)."""

    rank: int
    alpha: float
    rank_stabilized: bool
    target: str | list[str]
    exclude: str | list[str] | None

    @classmethod
    def parse(cls, content: bytes, source: str) -> "Options":
        """Read adapter_config.json; raises DataError that names the first option that is not plain LoRA."""
        try:
            config = parse_json(content)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{source} is not JSON ({error})") from error
        if not isinstance(config, dict):
            raise DataError(f"{source} is not an object")
        for key, allowed in _REQUIRED.items():
            if config.get(key) not in allowed:
                raise DataError(f"{source}: {key} is {config.get(key)!r}", f"use {allowed[0]!r}")
        for key in sorted(config.keys() - _REQUIRED.keys() - _INERT - _OURS):
            if config[key]:
                raise DataError(
                    f"{source}: {key} is {config[key]!r}, which the server would ignore or refuse",
                    "train a plain LoRA adapter; leave this option unset",
                )
        return cls(
            _rank(config.get("r"), source),
            _alpha(config.get("lora_alpha"), source),
            _flag(config.get("use_rslora", False), source),
            _pattern(config.get("target_modules"), "target_modules", source),
            _pattern(config["exclude_modules"], "exclude_modules", source)
            if config.get("exclude_modules")
            else None,
        )

    def modules(self, base: Base) -> list[str]:
        """The linear layers of `base` that these options wrap; raises DataError if there is none."""
        try:
            modules = base.targeted(self.target, self.exclude)
        except re.error as error:
            raise DataError(
                f"target_modules or exclude_modules is not a regular expression ({error})"
            ) from error
        if not modules:
            raise DataError(f"target_modules {self.target!r} match no linear layer of the base model")
        return modules

    def canonical(self, base: Base) -> "Options":
        """The same adapter with targets as a sorted list of names and nothing to exclude."""
        modules = self.modules(base)
        endings = sorted({module.rsplit(".", 1)[-1] for module in modules})
        # Short endings may match more than was trained: other layers, or the vision tower's convolution,
        # which is not among the base's linear layers. Then the full names are spelled out.
        short = not any(map(is_vision, modules)) and base.targeted(endings, None) == modules
        return Options(self.rank, self.alpha, self.rank_stabilized, endings if short else modules, None)

    def to_json(self) -> bytes:
        """The canonical adapter_config.json, readable by PEFT and vLLM."""
        config = {
            "base_model_name_or_path": None,
            "bias": "none",
            "exclude_modules": self.exclude,
            "fan_in_fan_out": False,
            "inference_mode": True,
            "init_lora_weights": True,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "modules_to_save": None,
            "peft_type": "LORA",
            "r": self.rank,
            "target_modules": self.target,
            "task_type": "CAUSAL_LM",
            "use_dora": False,
            "use_rslora": self.rank_stabilized,
        }
        return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()


def _rank(value: object, source: str) -> int:
    if type(value) is not int or value < 1:
        raise DataError(f"{source}: r is {value!r}", "the rank is a whole number of at least 1")
    return value


def _alpha(value: object, source: str) -> float:
    if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:  # a whole number may be larger
        raise DataError(f"{source}: lora_alpha is {value!r:.80}", "it must be a positive number")
    return int(value) if value == int(value) else value


def _flag(value: object, source: str) -> bool:
    if type(value) is not bool:
        raise DataError(f"{source}: use_rslora is {value!r}", "use true or false")
    return value


def _pattern(value: object, key: str, source: str) -> str | list[str]:
    if isinstance(value, str) and 0 < len(value) <= _MAX_PATTERN_CHARACTERS:
        return value
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return sorted(set(value))
    raise DataError(f"{source}: {key} is {str(value)[:80]!r}", "name the layers in a list of strings")
