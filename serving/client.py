"""Plays mazes through an OpenAI-compatible endpoint: a `Policy` of training.evaluate over HTTP."""

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx

from serving.endpoint import Endpoint, NoRoom, Retries
from training.errors import ConfigError
from training.evaluate import Conversation

# A policy that is still poor samples these; an image token in its answer breaks the next request.
NEVER_SAMPLED = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
_THREAD = "chat-policy"


@dataclass(frozen=True)
class Completion:
    """One answer: its text without special tokens, and its token ids.

    `logprobs` are those of the chosen tokens in nats, as the model gives them (no temperature, no token
    excluded); `top` maps the ids of the likeliest tokens at each place to theirs. Both are empty unless
    asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    top: tuple[dict[int, float], ...] = ()


class ChatPolicy:
    """A model behind an `Endpoint`, which says what address and key may be; the whole episode, pictures
    included, goes with every turn.

    `allowed_token_ids` limits what is sampled; without it the vision tokens are banned by name. A sampled
    answer (temperature > 0) is seeded by `seed`, episode and turn, so asking again gives the same answer.
    No answer takes longer than `max_tokens` and `timeout_s` let it.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | httpx.Auth | None = None,
        *,
        max_tokens: int = 4,
        allowed_token_ids: Sequence[int] | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        concurrency: int = 16,
        timeout_s: float = 60.0,
        retries: Retries | None = None,
    ):
        if concurrency < 1 or max_tokens < 1:
            raise ConfigError(f"concurrency = {concurrency}, max_tokens = {max_tokens}", "use 1 or more")
        if not temperature >= 0:
            raise ConfigError(f"temperature = {temperature}", "use 0 (greedy) or more")
        self.model = model
        self.endpoint = Endpoint(
            base_url, api_key, timeout_s=timeout_s, connections=concurrency, retries=retries
        )
        self._concurrency = concurrency
        self._seed = seed
        self._sampling: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature}
        if allowed_token_ids is not None:
            self._sampling["allowed_token_ids"] = list(allowed_token_ids)
        else:
            self._sampling["bad_words"] = list(NEVER_SAMPLED)

    def act(self, conversations: list[Conversation]) -> list[str]:
        """One answer per conversation, in their order, or none at all: a request that fails ends the others.

        A conversation that has become too long for the model gets the empty answer, which costs its turn.
        Raises SubstrateError if the endpoint stops answering, ConfigError if it refuses a request.
        """
        return [completion.text for completion in self.complete(conversations)]

    def complete(self, conversations: Sequence[Conversation], top: int = 0) -> list[Completion]:
        """Completions in order; `top` > 0 asks for log-probabilities, of that many tokens at each place."""
        if not conversations:
            return []
        stop, answered = threading.Event(), queue.SimpleQueue()
        waiting, taking = iter(enumerate(conversations)), threading.Lock()

        def work() -> None:
            while not stop.is_set():
                with taking:
                    place, conversation = next(waiting, (None, None))
                if conversation is None:
                    return
                try:
                    answered.put((place, self._ask(conversation, top, stop)))
                except Exception as error:
                    answered.put((place, error))

        # Daemons: an interrupt or an error ends the program at once, not after the slowest request.
        for _ in range(min(self._concurrency, len(conversations))):
            threading.Thread(target=work, name=_THREAD, daemon=True).start()
        completions: dict[int, Completion] = {}
        try:
            while len(completions) < len(conversations):
                place, outcome = answered.get()
                if isinstance(outcome, Exception):
                    raise outcome
                completions[place] = outcome
        finally:
            stop.set()
        return [completions[place] for place in range(len(conversations))]

    def close(self) -> None:
        """Close the connections."""
        self.endpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, conversation: Conversation, top: int, stop: threading.Event) -> Completion:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": conversation.messages(),
            "seed": conversation.seed(self._seed),
            "return_token_ids": True,
            **self._sampling,
        }
        if top:
            body |= {"logprobs": True, "top_logprobs": top, "return_tokens_as_token_ids": True}
        try:
            answer = self.endpoint.complete(body, stop)
        except NoRoom:
            # A first question that does not fit is a wrong setting, and so is one that asks for too much.
            if top or not conversation.turns:
                raise
            return Completion("", ())
        try:
            return _completion(answer, top)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self.endpoint.no_completion(answer) from error


def _completion(answer: dict[str, Any], top: int) -> Completion:
    (choice,) = answer["choices"]
    places = choice["logprobs"]["content"] if top else []
    token_ids = tuple(choice.get("token_ids") or ())
    if top and len(places) != len(token_ids):
        raise ValueError("not one log-probability for each token")
    return Completion(
        # A lone surrogate cannot be sent back as part of the conversation.
        text=(choice["message"]["content"] or "").encode("utf-8", "replace").decode(),
        token_ids=token_ids,
        logprobs=tuple(float(place["logprob"]) for place in places),
        top=tuple(
            {_token_id(entry["token"]): float(entry["logprob"]) for entry in place["top_logprobs"]}
            for place in places
        ),
    )


def _token_id(token: str) -> int:
    """vLLM writes a token as `token_id:<n>` when asked for ids: texts of special tokens are not unique."""
    return int(token.removeprefix("token_id:"))
