"""What a policy is asked, turn by turn, and in which words."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from training import seeds
from training.environments import Observation
from training.render import image_data_url


@dataclass(frozen=True)
class Turn:
    """One past turn: the picture shown, uint8 [height, width, 3], the answer given, the words shown."""

    image: np.ndarray
    answer: str
    text: str = ""


@dataclass
class Conversation:
    """What a policy is asked: the past turns of one episode, oldest first, and the picture of now.

    `key` names the episode: task digest and sample, with a slash between. `text` are the words shown with the
    picture of now, "" where there are none.
    """

    key: str
    image: np.ndarray
    turns: list[Turn] = field(default_factory=list)
    text: str = ""

    @property
    def images(self) -> list[np.ndarray]:
        """All pictures, the current one last."""
        return [*(turn.image for turn in self.turns), self.image]

    @property
    def answers(self) -> list[str]:
        """The answers given so far, without end-of-turn tokens: one fewer than `images`."""
        return [turn.answer for turn in self.turns]

    def seed(self, seed: int) -> int:
        """The seed for sampling the next answer under an evaluation's `seed`: of task, sample and turn."""
        digest, _, sample = self.key.rpartition("/")
        return seeds.derive(seed, digest, int(sample), len(self.turns))

    def messages(self) -> list[dict[str, Any]]:
        """In the chat format: words and picture from the user, an answer, ..., those of now."""
        chat: list[dict[str, Any]] = []
        for turn in self.turns:
            chat.append(user_message(Observation(turn.image, turn.text)))
            chat.append({"role": "assistant", "content": turn.answer})
        return [*chat, user_message(Observation(self.image, self.text))]


def user_message(observation: Observation) -> dict[str, Any]:
    """An observation in the chat format: its words, where it has any, and its picture."""
    words = [{"type": "text", "text": observation.text}] if observation.text else []
    picture = {"type": "image_url", "image_url": {"url": image_data_url(observation.image)}}
    return {"role": "user", "content": [*words, picture]}


class Policy(Protocol):
    """Anything that plays."""

    def act(self, conversations: list[Conversation]) -> Sequence[str]:
        """One answer per conversation, in their order."""
        ...
