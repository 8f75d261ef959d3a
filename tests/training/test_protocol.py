import pytest

from training.mazes import MOVES
from training.protocol import ACTIONS, Action, parse


def short(value: object) -> str:
    """A parameter's name in pytest's report; some answers are huge."""
    return ascii(value)[:40]


def test_the_texts_are_those_of_the_task():
    assert [str(action) for action in ACTIONS] == [
        "('move', 0)",
        "('move', 1)",
        "('move', 2)",
        "('move', 3)",
        "('stop', 'stop')",
    ]
    assert [MOVES[action.move] for action in ACTIONS[:4]] == [(0, 1), (-1, 0), (0, -1), (1, 0)]
    assert Action.STOP.move is None
    assert all(ACTIONS), "an action must never be false: parse gives None for no action"


@pytest.mark.parametrize(
    ("text", "action"),
    [
        *((str(action), action) for action in ACTIONS),
        ("('move', 0)<|im_end|>", Action.RIGHT),
        ("  ('move',3)\n<|im_end|>\n<|endoftext|> ", Action.DOWN),
        ("('move', 0)" + "<|im_end|> " * 100_000, Action.RIGHT),
        ('("move", 1)', Action.UP),
        ("( 'stop' , \"stop\" )", Action.STOP),
        ("I go up.<action>('move', 1)</action>", Action.UP),
        ("<action>\n('move', 2)\n</action><|im_end|>", Action.LEFT),
        ("<action>('move', 1)</action> no: <action>('move', 2)</action>", Action.LEFT),
        ("not ('move', 0) <action>('stop', 'stop')</action> ('move', 3)", Action.STOP),
        ("I write in <action> tags. <action>('move', 3)</action>", Action.DOWN),
        ("<observation>a</observation><justification>('move', 0)</justification><action>('move', 3)</action>",
         Action.DOWN),
        ("<action><action>('move', 0)</action></action>", Action.RIGHT),
    ],
    ids=short,
)  # fmt: skip
def test_actions_are_read(text, action):
    assert parse(text) is action


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n<|im_end|>",
        "('move', 4)",
        "('move', -1)",
        "('move', 00)",
        "('move', 1.0)",
        "('move', '1')",
        "('move', True)",
        "('move', ٣)",
        "('move', ²)",
        "（'move', 0）",
        "(‘move’, 0)",
        "('ｍove', 0)",
        "('move',\u00a00)",
        "\u200b('move', 0)",
        "('move\", 0)",
        "('Move', 0)",
        "(move, 0)",
        "move 0",
        "'move', 0",
        "['move', 0]",
        "('move', 0),",
        "(('move', 0))",
        "('move', 0)('move', 1)",
        "('move', 0)\n('move', 0)",
        "('move', 0) # right",
        "`('move', 0)`",
        "('stop', 0)",
        "('stop')",
        "('stop', stop)",
        "I think ('move', 0) is best",
        "The answer is ('stop', 'stop')",
        "<observation>('move', 0)</observation>",
        "<action>I choose ('move', 0)</action>",
        "<action>('move', 0)",
        "('move', 0)</action>",
        "<action></action>",
        "<action>('move', 0)</action><action>up</action>",
        "<action>('move', 0)</action><action>",
        "('move', 0)<action>",
        "<Action>('move', 0)</Action>",
        "< action >('move', 0)</ action >",
        "<action>('move', 0)<|im_end|></action>",
        "<|im_end|>('move', 0)",
        "('move', 0)<|im_end|>('move', 1)",
        "('move'," + " " * 100 + "0)",
        "(" * 100_000,
        "('move', 0)" * 100_000,
        "<action>" * 100_000,
        "<|im_end|>x" * 100_000,
    ],
    ids=short,
)
def test_everything_else_is_no_action(text):
    assert parse(text) is None
