"""The small rollout engine: vLLM inside a Ray actor, fed whole batches instead of HTTP requests.

SkyRL's own servers send every image of a conversation twice per turn as JSON; here an image travels
once and is then named by its key, and equal prompts of a group become one request with n samples.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ImageKey = str
Request = tuple[tuple[int, ...], tuple[ImageKey, ...]]
"""Prompt ids with ONE image token per image (vLLM expands them), and the keys of those images."""


@dataclass(frozen=True)
class EngineOptions:
    """What vLLM is started with."""

    model_path: str
    dtype: str
    max_model_len_tokens: int
    max_images: int
    lora_rank: int
    adapters_dir: str
    seed: int
    extra: dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """One sampled turn: token ids with the end token, their log-probabilities, and why it ended."""

    token_ids: list[int]
    logprobs: list[float]
    stop_reason: str


class RolloutEngine:
    """A Ray actor class; one per engine bundle."""

    def __init__(self, options: EngineOptions):
        from vllm import LLM

        self._options = options
        self._images: dict[ImageKey, np.ndarray] = {}
        self._lora: Any = None
        self._version = 0
        self._llm = LLM(
            options.model_path,
            dtype=options.dtype,
            max_model_len=options.max_model_len_tokens,
            limit_mm_per_prompt={"image": options.max_images, "video": 0},
            enable_lora=True,
            max_lora_rank=options.lora_rank,
            max_loras=1,
            max_cpu_loras=2,
            seed=options.seed,
            generation_config="vllm",
            **options.extra,
        )

    def ready(self) -> bool:
        return True

    def load_adapter(self, path: str) -> int:
        """Use the adapter at `path` from now on; returns its version.

        vLLM keys its caches by name, id and path, so each version gets new ones and an immutable copy.
        """
        from vllm.lora.request import LoRARequest

        self._version += 1
        copy = Path(self._options.adapters_dir) / f"engine-{self._options.seed}-v{self._version}"
        shutil.copytree(path, copy, dirs_exist_ok=True)
        previous, self._lora = self._lora, LoRARequest(f"policy-v{self._version}", self._version, str(copy))
        if previous is not None:
            self._llm.llm_engine.remove_lora(previous.lora_int_id)
            shutil.rmtree(previous.lora_path, ignore_errors=True)
        self._images.clear()
        return self._version

    def generate(
        self, requests: list[Request], images: dict[ImageKey, np.ndarray], sampling: dict[str, Any]
    ) -> list[Sample]:
        """Sample one turn for each request, in order; `images` are those not sent before."""
        from PIL import Image
        from vllm import SamplingParams

        self._images.update(images)
        groups: dict[Request, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(request, []).append(index)
        greedy = sampling.get("temperature") == 0
        prompts, params = [], []
        for (ids, keys), members in groups.items():
            prompts.append(
                {
                    "prompt_token_ids": list(ids),
                    "multi_modal_data": {"image": [Image.fromarray(self._images[k]) for k in keys]},
                    "multi_modal_uuids": {"image": list(keys)},
                }
            )
            params.append(SamplingParams(n=1 if greedy else len(members), **sampling))
        outputs = self._llm.generate(prompts, params, lora_request=self._lora, use_tqdm=False)
        samples: list[Sample | None] = [None] * len(requests)
        for output, members in zip(outputs, groups.values(), strict=True):
            for slot, index in enumerate(members):
                samples[index] = _sample(output.outputs[0 if greedy else slot])
        return samples


def _sample(completion: Any) -> Sample:
    ids = list(completion.token_ids)
    logprobs = [
        max(step[token].logprob, -9999.0) for token, step in zip(ids, completion.logprobs, strict=True)
    ]
    return Sample(ids, logprobs, completion.finish_reason)
