"""Plays with a checkpoint from disk by plain transformers and PEFT: no server, no engine, no cluster.

A second opinion on what engines answer, and the way to play an adapter that nobody serves. Slow: every turn
reads the whole conversation again.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from serving import adapter as adapters
from serving.adapter import Limits
from serving.base import Base
from serving.client import NEVER_SAMPLED
from training.errors import ConfigError, DataError, SubstrateError
from training.evaluate import Conversation

NEEDED = ("torch", "transformers", "peft")
LARGEST_RANK = 256
_BATCH = 16


def require_libraries() -> None:
    """Raises SubstrateError where this Python cannot load a model."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise SubstrateError(
            f"this Python lacks {', '.join(missing)}, which loading a model takes",
            "use the training environment: .venv-train/bin/skypod evaluate ... (`make install` makes it)",
        )


class LocalPolicy:
    """A base checkpoint, with a packaged adapter or without, on the GPU if there is one, else on the CPU.

    `seed` and `temperature` as in serving.client.ChatPolicy. The adapter is checked against the base before
    anything is loaded. Raises SubstrateError without the libraries, DataError for what is no checkpoint or
    no adapter of this base.
    """

    def __init__(
        self,
        base_dir: Path,
        adapter_dir: Path | None = None,
        *,
        dtype: str = "float32",
        max_tokens: int = 4,
        allowed_token_ids: Sequence[int] | None = None,
        temperature: float = 0.0,
        seed: int = 0,
    ):
        if max_tokens < 1 or not temperature >= 0:
            raise ConfigError(
                f"max_tokens = {max_tokens}, temperature = {temperature}", "use 1 or more, and 0 or more"
            )
        if adapter_dir is not None:
            adapters.validate(adapter_dir, Base.read(base_dir), Limits(max_rank=LARGEST_RANK))
        require_libraries()
        import torch
        from transformers import AutoModelForImageTextToText, AutoProcessor, GenerationConfig
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self._processor = AutoProcessor.from_pretrained(base_dir, local_files_only=True)
            model = AutoModelForImageTextToText.from_pretrained(
                base_dir, dtype=getattr(torch, dtype), local_files_only=True
            )
        except (OSError, ValueError) as error:
            raise DataError(f"{base_dir} cannot be loaded ({error})", "give a whole checkpoint") from error
        if adapter_dir is not None:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, str(adapter_dir))
        self._model = model.to(device).eval()
        words = self._processor.tokenizer
        words.padding_side = "left"
        self._generation = GenerationConfig(
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=words.eos_token_id,
            pad_token_id=words.pad_token_id if words.pad_token_id is not None else words.eos_token_id,
        )
        self._banned = np.zeros(model.config.get_text_config().vocab_size, bool)
        if allowed_token_ids is not None:
            self._banned[:] = True
            self._banned[list(allowed_token_ids)] = False
        else:
            self._banned[
                words.convert_tokens_to_ids([t for t in NEVER_SAMPLED if t in words.get_vocab()])
            ] = True
        self._temperature, self._seed = temperature, seed

    def act(self, conversations: list[Conversation]) -> list[str]:
        """One answer per conversation, in their order."""
        answers: list[str] = []
        for first in range(0, len(conversations), _BATCH):
            answers += self._answer(conversations[first : first + _BATCH])
        return answers

    def close(self) -> None:
        """Nothing is held that the process does not free."""

    def _answer(self, conversations: list[Conversation]) -> list[str]:
        import torch

        words = self._processor.tokenizer
        texts = [
            words.apply_chat_template(one.messages(), add_generation_prompt=True, tokenize=False)
            for one in conversations
        ]
        inputs = self._processor(
            text=texts,
            images=[image for one in conversations for image in one.images],
            padding=True,
            add_special_tokens=False,
            return_tensors="pt",
        ).to(self._model.device)
        seeds = [one.seed(self._seed) for one in conversations]
        with torch.inference_mode():
            tokens = self._model.generate(
                **inputs, generation_config=self._generation, logits_processor=[self._chooser(seeds)]
            )
        return words.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    def _chooser(self, seeds: list[int]) -> Any:
        """Edits the scores [row, token] such that the largest is the choice: greedy, or a sampled one.

        Adding a Gumbel draw to scores / temperature makes the largest a sample of their softmax; with draws
        of its own for each row, a row's answer does not depend on the rows beside it.
        """
        import torch

        draws = [np.random.default_rng(seed) for seed in seeds]
        banned = torch.from_numpy(self._banned)

        def choose(_: Any, scores: Any) -> Any:
            scores = scores.float().masked_fill(banned.to(scores.device), float("-inf"))
            if self._temperature > 0:
                noise = np.stack([draw.gumbel(size=scores.shape[1]) for draw in draws])
                scores = scores / self._temperature + torch.from_numpy(noise).to(scores)
            return scores

        return choose
