"""The actions of VisGym `maze_2d` as texts, and the one way an answer of any environment is read."""

import re
from enum import StrEnum

END_TOKENS = ("<|im_end|>", "<|endoftext|>")
LONGEST_ACTION = 64
_OPEN, _CLOSE = "<action>", "</action>"
_SPACE = " \t\r\n"
_MOVE = re.compile(r"""\(\s*(['"])move\1\s*,\s*([0-3])\s*\)""", re.ASCII)
_STOP = re.compile(r"""\(\s*(['"])stop\1\s*,\s*(['"])stop\2\s*\)""", re.ASCII)


class Action(StrEnum):
    """What the agent can do; the value is the text that a policy writes."""

    RIGHT = "('move', 0)"
    UP = "('move', 1)"
    LEFT = "('move', 2)"
    DOWN = "('move', 3)"
    STOP = "('stop', 'stop')"

    @property
    def move(self) -> int | None:
        """0..3 as `training.mazes.MOVES`; None for the stop."""
        return _MOVES.get(self)


ACTIONS: tuple[Action, ...] = tuple(Action)
_MOVES = {action: move for move, action in enumerate(ACTIONS[:4])}
STOP = Action.STOP


def strip_end(text: str) -> str:
    """The answer without the space around it and the end-of-turn tokens at its end."""
    end = len(text)
    # By index, not by slicing: a policy can write any number of end tokens.
    while end:
        if text[end - 1] in _SPACE:
            end -= 1
        elif ending := next((token for token in END_TOKENS if text.endswith(token, 0, end)), None):
            end -= len(ending)
        else:
            break
    return text[:end].lstrip(_SPACE)


def action_text(text: str) -> str | None:
    """What an answer has where the protocol puts the action, or None when it has nothing there.

    An answer without an `<action>` tag has to be the action and nothing else. With tags, the content of the
    last one has to be; a last tag that is never closed is no action. A tuple that is only quoted somewhere,
    as in a reasoning, does not count.
    """
    answer = strip_end(text)
    opening = answer.rfind(_OPEN)
    if opening >= 0:
        content, closed, _ = answer[opening + len(_OPEN) :].partition(_CLOSE)
        if not closed:
            return None
        answer = content.strip(_SPACE)
    return answer if 0 < len(answer) <= LONGEST_ACTION else None


def parse(text: str) -> Action | None:
    """The move or stop that an answer takes, or None when it takes none; see `action_text`."""
    answer = action_text(text) or ""
    if move := _MOVE.fullmatch(answer):
        return ACTIONS[int(move[2])]
    return STOP if _STOP.fullmatch(answer) else None
