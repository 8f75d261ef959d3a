"""SkyRL's inference interface over the small engines: renders here, batches what waits."""

import asyncio
import base64
import hashlib
import io
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInterface
from skyrl.tinker.types import MultiModalKwargs

from training.errors import DataError
from training.skyrl.engine import ImageKey, Request, Sample

IMAGE_TOKEN = "<|image_pad|>"  # noqa: S105 - a vocabulary entry


@dataclass(frozen=True)
class _Picture:
    """One image: `pixels` uint8 [H, W, 3]; `patches` float32 [P, C]; `grid` int64 [1, 3]; its token count."""

    pixels: np.ndarray
    patches: torch.Tensor
    grid: torch.Tensor
    tokens: int


@dataclass(frozen=True)
class _Waiting:
    """A request that no engine has seen yet, and where its answer goes. `session` is its conversation's."""

    session: str
    request: Request
    sampling: dict[str, Any]
    seed: int | None
    answer: asyncio.Future[Sample]


class LocalClient(InferenceEngineInterface):
    """Held by the driver; a copy without state travels to rank 0, which announces new adapters through it.

    Conversations that were announced (`expect`) take their turns together: what is answered in one batch
    depends on them alone and not on the speed of anything, so the same step gives the same bits again.
    """

    def __init__(self, engines: list[Any], tokenizer: Any, image_processor: Any, model_name: str):
        self._engines = engines
        self._tokenizer = tokenizer
        self._processor = image_processor
        self._model_name = model_name
        self._weight_version = 0
        self._image_token = tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
        self._keys: dict[str, ImageKey] = {}
        self._pictures: dict[ImageKey, _Picture] = {}
        self._token_ids: dict[str, tuple[int, ...]] = {}
        self._sent: list[set[ImageKey]] = [set() for _ in engines]
        self._expected = 0
        self._queue: list[_Waiting] = []
        self._sending: set[asyncio.Task] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "_engines": self._engines,
            "_model_name": self._model_name,
            "_weight_version": self._weight_version,
        }

    @property
    def model_name(self) -> str:
        return self._model_name

    @property
    def weight_version(self) -> int:
        return self._weight_version

    def increment_weight_version(self) -> None:
        """Called by the driver once a new adapter is live: pictures of earlier rollouts can go."""
        self._weight_version += 1
        self._keys.clear()
        self._pictures.clear()
        for sent in self._sent:
            sent.clear()

    def get_endpoint_url(self) -> str:
        return "in-process"

    # -- rendering -----------------------------------------------------------------------------------

    async def render_chat_completion(self, request_payload: dict[str, Any]) -> dict[str, Any]:
        """Token ids of the conversation with expanded image tokens; `features` name the images."""
        messages = request_payload["json"]["messages"]
        keys = tuple(
            self._picture_key(part["image_url"]["url"])
            for message in messages
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "image_url"
        )
        text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        compact = self._token_ids.get(text)
        if compact is None:
            compact = tuple(self._tokenizer.encode(text, add_special_tokens=False))
            self._token_ids[text] = compact
        return {
            "token_ids": self._expand(compact, keys),
            "features": {"kwargs_data": {"image": keys}, "compact": compact},
        }

    def _expand(self, compact: tuple[int, ...], keys: tuple[ImageKey, ...]) -> list[int]:
        ids: list[int] = []
        pictures = iter(keys)
        for token in compact:
            count = self._pictures[next(pictures)].tokens if token == self._image_token else 1
            ids += [token] * count
        if next(pictures, None) is not None:
            raise DataError(
                f"a conversation holds {len(keys)} images "
                f"but {compact.count(self._image_token)} image tokens",
                "the chat template must write one image token per image",
            )
        return ids

    def _picture_key(self, url: str) -> ImageKey:
        key = self._keys.get(url)
        if key is None:
            data = base64.b64decode(url.split(",", 1)[1])
            key = self._keys[url] = hashlib.blake2s(data, digest_size=12).hexdigest()
            image = Image.open(io.BytesIO(data)).convert("RGB")
            out = self._processor(images=[image], return_tensors="pt")
            tokens = int(out["image_grid_thw"].prod()) // self._processor.merge_size**2
            self._pictures[key] = _Picture(
                np.asarray(image), out["pixel_values"], out["image_grid_thw"], tokens
            )
        return key

    def decode_mm_kwargs(self, kwargs_data: dict[str, Any] | None) -> MultiModalKwargs:
        """Stands in for SkyRL's decoder of serialized pixels: the pictures never left this process."""
        keys = (kwargs_data or {}).get("image") or ()
        if not keys:
            return MultiModalKwargs(pixel_values=None, image_grid_thw=None)
        pictures = [self._pictures[key] for key in keys]
        return MultiModalKwargs(
            pixel_values=torch.cat([p.patches for p in pictures]),
            image_grid_thw=torch.cat([p.grid for p in pictures]),
        )

    # -- sampling ------------------------------------------------------------------------------------

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        sampling = {k: v for k, v in input_batch["sampling_params"].items() if v is not None and k != "n"}
        seed = sampling.pop("seed", None)
        futures = []
        for features, session in zip(input_batch["mm_features"], input_batch["session_ids"], strict=True):
            request = (features["compact"], features["kwargs_data"]["image"])
            waiting = _Waiting(session, request, sampling, seed, loop.create_future())
            self._queue.append(waiting)
            futures.append(waiting.answer)
        self._send_when_all_wait()
        samples = await asyncio.gather(*futures)
        ids = [sample.token_ids for sample in samples]
        return {
            "responses": self._tokenizer.batch_decode(ids, skip_special_tokens=True),
            "response_ids": ids,
            "stop_reasons": [sample.stop_reason for sample in samples],
            "response_logprobs": [sample.logprobs for sample in samples],
            "prompt_image_tokens": [sample.image_tokens for sample in samples],
            "prompt_logprobs": None,
            "rollout_expert_indices": None,
            "rollout_sample_support": None,
        }

    def expect(self, conversations: int) -> None:
        """So many conversations begin; each is over with a call of `leave`."""
        self._expected += conversations

    def leave(self) -> None:
        """A conversation asks no more: the others need not wait for it."""
        self._expected -= 1
        self._send_when_all_wait()

    def _send_when_all_wait(self) -> None:
        if not self._queue or len(self._queue) < self._expected:
            return
        shares: dict[int, list[_Waiting]] = defaultdict(list)
        for waiting in sorted(self._queue, key=lambda one: one.session):
            shares[self._engine_of(waiting.session)].append(waiting)
        self._queue.clear()
        for engine, share in shares.items():
            task = asyncio.get_running_loop().create_task(self._send(engine, share))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def _engine_of(self, session: str) -> int:
        """A whole GRPO group goes to one engine, where equal prompts are sampled once."""
        if len(self._engines) == 1:
            return 0
        group = session.rsplit("_", 1)[0]
        return int.from_bytes(hashlib.blake2s(group.encode(), digest_size=4).digest()) % len(self._engines)

    async def _send(self, engine: int, waiting: list[_Waiting]) -> None:
        requests, seeds = [one.request for one in waiting], [one.seed for one in waiting]
        new = {key for _, keys in requests for key in keys} - self._sent[engine]
        images = {key: self._pictures[key].pixels for key in new}
        try:
            samples = await self._engines[engine].generate.remote(
                requests, images, waiting[0].sampling, seeds
            )
        except Exception as error:
            for one in waiting:
                if not one.answer.done():
                    one.answer.set_exception(error)
            return
        self._sent[engine] |= new
        for one, sample in zip(waiting, samples, strict=True):
            if not one.answer.done():
                one.answer.set_result(sample)

    # -- adapters and the rest of the interface ----------------------------------------------------

    async def update_named_weights(self, request: Any) -> None:
        await self.load_lora_adapter("policy", request.lora_path)

    async def load_lora_adapter(self, lora_name: str, lora_path: str) -> dict[str, Any]:
        await asyncio.gather(*[engine.load_adapter.remote(lora_path) for engine in self._engines])
        return {}

    async def chat_completion(self, request_payload: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError("the in-process engine samples tokens only")

    async def completion(self, request_payload: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError("the in-process engine samples tokens only")

    async def wake_up(self, *args: Any, **kwargs: Any) -> None:
        """Nothing sleeps: adapter and base stay loaded."""

    async def sleep(self, *args: Any, **kwargs: Any) -> None:
        """See `wake_up`."""

    async def is_sleeping(self) -> bool:
        return False

    async def teardown(self) -> None:
        """The engines are Ray actors and end with the job."""

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> None:
        """For the sake of repetition: stale it cannot be, every adapter version has a name of its own."""
        await asyncio.gather(*[engine.forget.remote() for engine in self._engines])

    async def pause_generation(self) -> None:
        """The trainer never syncs while a rollout is under way."""

    async def resume_generation(self) -> None:
        """See `pause_generation`."""

    async def finish_session(self, session_id: Any) -> None:
        """No per-session state is kept."""

    async def get_world_size(self) -> tuple[int, int]:
        return len(self._engines), 1
