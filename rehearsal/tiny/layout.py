"""How a game reads as tokens, exactly as SkyRL's generator renders it.

One turn is a user message with one image and an assistant message with one answer of three ids; the last of
them ends the message, and a newline follows. Every image stays in the conversation. Positions are those of
Qwen's interleaved M-RoPE: the cells of an image share one time and count rows and columns.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rehearsal.tiny import tokenizer as words

ANSWER_LENGTH = 3
IGNORED = -100
"""Label of a token that is not learned (torch's default `ignore_index`)."""


@cache
def observation_ids(side: int) -> tuple[int, ...]:
    """Ids of a user turn with one image of side x side cells, up to the point where the answer starts."""
    before = (words.IM_START, "user\n", words.VISION_START)
    after = (words.VISION_END, words.IM_END, "\n", words.IM_START, "assistant\n")
    image = (words.IMAGE,) * (side * side)
    return tuple(words.token_id(text) for text in (*before, *image, *after))


def turn_length(side: int) -> int:
    """Ids per finished turn: observation, answer and the newline behind it."""
    return len(observation_ids(side)) + ANSWER_LENGTH + 1


@cache
def positions(side: int, turns: int) -> np.ndarray:
    """M-RoPE positions of `turns` finished turns: int64 [3, turns * turn_length]."""
    image = words.token_id(words.IMAGE)
    first = observation_ids(side).index(image)
    rows, columns = np.divmod(np.arange(side * side), side)
    text_after = turn_length(side) - first - side * side
    turn = np.concatenate(
        [
            np.tile(np.arange(first), (3, 1)),
            first + np.stack([np.zeros_like(rows), rows, columns]),
            first + side + np.tile(np.arange(text_after), (3, 1)),
        ],
        axis=1,
    )
    advance = first + side + text_after
    return np.concatenate([turn + advance * k for k in range(turns)], axis=1)


@cache
def answers() -> np.ndarray:
    """Ids of the five answers: int64 [5, ANSWER_LENGTH]."""
    return np.array([words.answer_ids(action) for action in range(words.STOP + 1)])


def conversations(actions: np.ndarray, side: int) -> np.ndarray:
    """Ids of whole games: actions int [B, turns] -> int64 [B, turns * turn_length]."""
    games, turns = actions.shape
    observation = np.broadcast_to(np.array(observation_ids(side)), (games, turns, len(observation_ids(side))))
    newline = np.full((games, turns, 1), words.token_id("\n"))
    return np.concatenate([observation, answers()[actions], newline], axis=2).reshape(games, -1)


def answer_labels(actions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """What to say after each prefix of the answer that was given: int64 [..., ANSWER_LENGTH].

    `actions` were taken, `wanted` should have been; -1 in `wanted` asks for nothing. When the verbs differ
    the rest of the given answer is no prefix of the wanted one and is ignored.
    """
    given, right = answers()[actions], answers()[np.maximum(wanted, 0)]
    labels = right.copy()
    labels[..., 1:][given[..., 0] != right[..., 0]] = IGNORED
    labels[wanted < 0] = IGNORED
    return labels


def answer_starts(side: int, turns: int) -> np.ndarray:
    """Index of the last id before each answer: int [turns]; the answer is predicted from there on."""
    return np.arange(turns) * turn_length(side) + len(observation_ids(side)) - 1
