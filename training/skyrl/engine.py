"""The small rollout engine: vLLM inside a Ray actor, fed whole batches instead of HTTP requests.

SkyRL's own servers send every image of a conversation twice per turn as JSON; here an image travels
once and is then named by its key, and equal prompts of a group are prepared once.
"""

import shutil
from dataclasses import dataclass
from itertools import count
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
    """One sampled turn: token ids with the end token, their log-probabilities, and why it ended.

    `image_tokens` is how many image tokens vLLM made of the prompt.
    """

    token_ids: list[int]
    logprobs: list[float]
    stop_reason: str
    image_tokens: int


class RolloutEngine:
    """A Ray actor class; one per engine bundle."""

    def __init__(self, options: EngineOptions):
        from vllm import LLM

        self._options = options
        self._images: dict[ImageKey, np.ndarray] = {}
        self._lora: Any = None
        self._version = 0
        self._requests = count()
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
        self._image_token = self._llm.model_config.hf_config.image_token_id

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

    def forget(self) -> None:
        """Keep nothing of earlier prompts: what is found in a cache may differ from a new answer in bits."""
        self._llm.reset_prefix_cache()
        self._llm.reset_mm_cache()
        self._llm.llm_engine.reset_encoder_cache()

    def generate(
        self,
        requests: list[Request],
        images: dict[ImageKey, np.ndarray],
        sampling: dict[str, Any],
        seeds: list[int | None],
    ) -> list[Sample]:
        """Sample one turn for each request, in order, with its own seed.

        `images` are those not sent before. Equal prompts are prepared once, and answered once when greedy.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._images.update(images)
        groups: dict[Request, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(request, []).append(index)
        greedy = sampling.get("temperature") == 0
        asked: list[tuple[list[int], int]] = []
        for request, members in groups.items():
            prompt = self._render(request)
            image_tokens = prompt["prompt_token_ids"].count(self._image_token)
            for answered in [members] if greedy else [[index] for index in members]:
                params = SamplingParams(
                    **sampling, seed=seeds[answered[0]], output_kind=RequestOutputKind.FINAL_ONLY
                )
                self._llm.llm_engine.add_request(
                    str(next(self._requests)), prompt, params, lora_request=self._lora
                )
                asked.append((answered, image_tokens))
        samples: list[Sample | None] = [None] * len(requests)
        outputs = self._llm.wait_for_completion(use_tqdm=False)
        for output, (answered, image_tokens) in zip(outputs, asked, strict=True):
            for index in answered:
                samples[index] = _sample(output.outputs[0], image_tokens)
        return samples

    def _render(self, request: Request) -> Any:
        """The prompt as vLLM's engine takes it, image tokens expanded."""
        from PIL import Image

        ids, keys = request
        prompt = {
            "prompt_token_ids": list(ids),
            "multi_modal_data": {"image": [Image.fromarray(self._images[k]) for k in keys]},
            "multi_modal_uuids": {"image": list(keys)},
        }
        (rendered,) = self._llm.renderer.render_cmpl([prompt])
        return rendered


def _sample(completion: Any, image_tokens: int) -> Sample:
    ids = list(completion.token_ids)
    logprobs = [
        max(step[token].logprob, -9999.0) for token, step in zip(ids, completion.logprobs, strict=True)
    ]
    return Sample(ids, logprobs, completion.finish_reason, image_tokens)
