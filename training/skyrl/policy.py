"""The rollouts' engine as a policy of the evaluator."""

import asyncio
from collections.abc import Sequence
from typing import Any

from training.conversation import Conversation
from training.errors import ConfigError
from training.skyrl.asker import announce

_NO_ROOM: dict[str, Any] = {"responses": [""], "response_ids": [[]], "response_logprobs": [[]]}


class EnginePolicy:
    """`training.conversation.Policy` over SkyRL's inference client, called from a thread beside its loop.

    A conversation of more than `longest` tokens leaves the model no room for an answer: it gets the empty
    one, which costs its turn, and not the evaluation. A vLLM server refuses it at the same length. Raises
    ConfigError when even a first question is that long.
    """

    def __init__(
        self,
        client: Any,
        model: str | None,
        sampling: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        longest: int,
    ):
        self._client, self._model, self._sampling, self._loop = client, model, sampling, loop
        self._longest = longest

    def act(self, conversations: list[Conversation]) -> Sequence[str]:
        return [output["responses"][0] for output in self.complete(conversations)]

    def complete(self, conversations: list[Conversation]) -> list[dict[str, Any]]:
        """SkyRL's engine output for each conversation: text, token ids, log-probabilities."""

        async def all_of_them() -> list[dict[str, Any]]:
            leave = announce(self._client, len(conversations))

            async def one(conversation: Conversation) -> dict[str, Any]:
                try:
                    return await self._complete(conversation)
                finally:
                    leave()

            return await asyncio.gather(*[one(c) for c in conversations])

        return asyncio.run_coroutine_threadsafe(all_of_them(), self._loop).result()

    async def _complete(self, conversation: Conversation) -> dict[str, Any]:
        request = {"model": self._client.model_name, "messages": conversation.messages()}
        rendered = await self._client.render_chat_completion({"json": request})
        if (found := len(rendered["token_ids"])) > self._longest:
            if conversation.turns:
                return _NO_ROOM
            raise ConfigError(
                f"the question {conversation.key} takes {found} tokens, {self._longest} are left for it",
                "raise rollout.max_model_len_tokens, or lower rollout.max_new_tokens",
            )
        return await self._client.generate(
            {
                "prompt_token_ids": [rendered["token_ids"]],
                "session_ids": [conversation.key.replace("/", "_")],
                "sampling_params": self._sampling,
                "mm_features": [rendered["features"]],
            },
            model=self._model,
        )
