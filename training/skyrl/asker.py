"""Asks an engine so that a rollout can be repeated: every request has a seed of its own."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from training import seeds


def announce(client: Any, conversations: int) -> Callable[[], None]:
    """Tell a client that answers conversations together (see `LocalClient`) how many begin.

    What is returned has to be called when one of them ends; for other clients it does nothing.
    """
    if not hasattr(client, "expect"):
        return lambda: None
    client.expect(conversations)
    return client.leave


class Asker:
    """An inference client of SkyRL that seeds each request by (run seed, step, row, sample, turn).

    `image_tokens` holds, for each episode ("row_sample") of the step, how many image tokens its last request
    had: by the engine's own word where it says so, else those that its renderer made of the conversation.
    """

    def __init__(self, client: Any, run_seed: int, image_token: int):
        self._client, self._run_seed, self._image_token = client, run_seed, image_token
        self.begin(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def begin(self, step: int) -> None:
        """Forget the episodes of earlier steps."""
        self._step = step
        self._turns: dict[str, int] = defaultdict(int)
        self.image_tokens: dict[str, int] = {}

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        (episode,) = input_batch["session_ids"]
        row, _, sample = episode.rpartition("_")
        seed = seeds.derive(self._run_seed, self._step, row, int(sample), self._turns[episode])
        self._turns[episode] += 1
        sampling = {**input_batch["sampling_params"], "seed": seed}
        output = await self._client.generate({**input_batch, "sampling_params": sampling}, model=model)
        (said,) = output.get("prompt_image_tokens") or (None,)
        sent = input_batch["prompt_token_ids"][0]
        self.image_tokens[episode] = sent.count(self._image_token) if said is None else said
        return output
