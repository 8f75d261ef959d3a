"""The body of a chat completion: what is understood and within bounds goes on, everything else is refused.

The engine gets what was checked, written anew, and never the client's own bytes: two parsers may differ on
what a JSON text says.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from serving.gateway.images import Images
from serving.gateway.refusal import Refusal
from serving.gateway.settings import Limits
from training.errors import visible

# Fields that go on as they are; the engine checks their types. Left out on purpose: what costs the engine
# much (grammars, beam search, prompt log-probabilities), what changes its templates or picture processing,
# and what reaches into its caches.
_PASSED = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "min_tokens", "n"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"),
        *("stop", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens"),
        *("allowed_token_ids", "bad_words", "stream", "stream_options"),
        *("logprobs", "top_logprobs", "return_token_ids", "return_tokens_as_token_ids"),
    }
)
# What only OpenAI's own bookkeeping reads.
_IGNORED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
_LENGTHS = ("max_tokens", "max_completion_tokens")
_ROLES = ("system", "user", "assistant")
_EMPTY = (None, "", [], {})


@dataclass(frozen=True)
class Chat:
    """A checked request. `model` is what the client asked for; `body` is all but the model."""

    model: str
    body: dict[str, Any]
    images: int

    @property
    def stream(self) -> bool:
        return self.body.get("stream") is True

    def opening(self) -> str:
        """What the user said first, the same in every turn of a conversation."""
        return json.dumps(next((m for m in self.body["messages"] if m["role"] == "user"), None))

    def encode(self, model: str) -> bytes:
        """The body that asks the engine for `model`."""
        return json.dumps({"model": model, **self.body}, allow_nan=False).encode()


def parse(raw: bytes, limits: Limits, images: Images) -> Chat:
    """Read and check a body; Refusal (400, 413) says what it has to change."""
    try:
        given = json.loads(raw, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        raise _wrong("the body is not JSON") from None
    if not isinstance(given, dict):
        raise _wrong("the body is not a JSON object")
    # Clients write fields that they do not use as null.
    given = {name: value for name, value in given.items() if value is not None and name not in _IGNORED}
    model, messages = given.pop("model", None), given.pop("messages", None)
    if not isinstance(model, str):
        raise _wrong("model is missing", "name one of /v1/models")
    lengths = {given.pop(name) for name in _LENGTHS if _counts(given, name)}
    if len(lengths) > 1:
        raise _wrong("max_tokens and max_completion_tokens differ", "send one of them")
    if unknown := sorted(given.keys() - _PASSED):
        raise _wrong(f"the field {_quoted(unknown[0])} is not supported here", "leave it out")
    for name in ("stream", "logprobs"):
        if not isinstance(given.get(name, False), bool):
            raise _wrong(f"{name} is neither true nor false")
    choices = given["n"] if _counts(given, "n") else 1
    length = lengths.pop() if lengths else max(1, limits.tokens // choices)
    if length * choices > limits.tokens:
        raise _wrong(
            f"{choices} x {length} tokens are asked for, at most {limits.tokens} are given",
            "lower max_tokens or n",
        )
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages is not a list of messages")
    if len(messages) > limits.messages:
        raise _wrong(f"{len(messages)} messages, at most {limits.messages} are taken", "shorten it")
    reader = _Reader(limits, images)
    given["messages"] = [reader.message(one) for one in messages]
    given["max_tokens"] = length
    return Chat(model, given, reader.images)


class _Reader:
    """Writes messages anew, from the parts that are known, and counts words and pictures."""

    def __init__(self, limits: Limits, images: Images):
        self._limits = limits
        self._check = images.check
        self._chars = 0
        self.images = 0

    def message(self, given: Any) -> dict[str, Any]:
        if not isinstance(given, dict) or given.get("role") not in _ROLES:
            raise _wrong("a message has none of the roles system, user and assistant")
        used = {name for name, value in given.items() if value not in _EMPTY}
        if strange := sorted(used - {"role", "content"}):
            raise _wrong(f"a message's field {_quoted(strange[0])} is not supported here", "leave it out")
        content = given.get("content")
        if isinstance(content, list):
            content = [self._part(one) for one in content]
        else:
            content = self._text("" if content is None else content)
        return {"role": given["role"], "content": content}

    def _part(self, given: Any) -> dict[str, Any]:
        kind = given.get("type") if isinstance(given, dict) else None
        if kind == "text" and given.keys() == {"type", "text"}:
            return {"type": "text", "text": self._text(given["text"])}
        if kind == "image_url" and given.keys() == {"type", "image_url"}:
            picture = given["image_url"]
            if isinstance(picture, dict) and picture.keys() <= {"url", "detail"}:
                return {"type": "image_url", "image_url": {"url": self._image(picture.get("url"))}}
        raise _wrong(
            "a part of a message is neither text nor a picture",
            'use {"type": "text"} or {"type": "image_url"}',
        )

    def _text(self, text: Any) -> str:
        if not isinstance(text, str):
            raise _wrong("a message's content is neither text nor a list of parts")
        self._chars += len(text)
        if self._chars > self._limits.text_chars:
            raise Refusal(
                413,
                "text_too_long",
                f"more than {self._limits.text_chars} characters",
                "shorten the conversation",
            )
        return text

    def _image(self, url: Any) -> str:
        self.images += 1
        if self.images > self._limits.images:
            raise Refusal(
                400, "too_many_images", f"more than {self._limits.images} pictures", "send fewer of them"
            )
        if not isinstance(url, str):
            raise _wrong("a picture has no url")
        self._check(url)
        return url


def _counts(given: dict[str, Any], name: str) -> bool:
    """Whether a field is there; refuses one that is not a whole number from 1."""
    if name in given and (type(given[name]) is not int or given[name] < 1):
        raise _wrong(f"{name} is not a whole number of 1 or more")
    return name in given


def _quoted(name: str) -> str:
    return repr(visible(name[:60]))


def _finite(text: str) -> float:
    """A number of JSON that is not whole; refuses those that JSON or a float cannot hold."""
    if not math.isfinite(number := float(text)):
        raise _wrong(f"{text[:60]} is no finite number of JSON", "send one between -1e308 and 1e308")
    return number


def _wrong(problem: str, remedy: str = "") -> Refusal:
    return Refusal(400, "invalid_request", problem, remedy)
