"""SkyRL's generator, asked so that a rollout can be repeated: every request has a seed of its own."""

from typing import Any

from skyrl.train.generators.skyrl_vlm_generator import SkyRLVLMGymGenerator

from training.skyrl.asker import Asker, announce


class SeededGenerator(SkyRLVLMGymGenerator):
    """Its requests go through `asker`; the rest is SkyRL's."""

    def __init__(self, *, run_seed: int, image_token: int, inference_engine_client: Any, **pieces: Any):
        self.asker = Asker(inference_engine_client, run_seed, image_token)
        super().__init__(inference_engine_client=self.asker, **pieces)

    async def generate(self, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        self.asker.begin(input_batch["batch_metadata"].global_step)
        self._leave = announce(self.asker, len(input_batch["prompts"]))
        return await super().generate(input_batch, *args, **kwargs)

    async def agent_loop(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().agent_loop(*args, **kwargs)
        finally:
            self._leave()
