"""The second kind of task, through everything that plays, records, splits and shows tasks."""

import random
from collections import Counter

import numpy as np
import pytest

from training import splits
from training.environments import Game, named
from training.environments.counting import CELL_PX, DISC, SQUARE, Board
from training.errors import DataError
from training.evaluate import EvaluationSettings, ceiling, play, read_records, summarize
from training.render import PALETTES
from training.report import pictures

COUNTING = named("counting")
BOARD = Board(("o.x.", "..oo", "x...", "...."), DISC)


class Says:
    """Answers every conversation with `answer(task)`; keeps what was asked."""

    def __init__(self, tasks, answer):
        self.tasks, self.answer, self.seen = {task.digest: task for task in tasks}, answer, []

    def act(self, conversations):
        self.seen += [conversation.messages() for conversation in conversations]
        return [self.answer(self.tasks[c.key.split("/")[0]], len(c.turns)) for c in conversations]


@pytest.fixture(scope="module")
def built():
    return splits.build(COUNTING, 0, splits.Sizes(train=90))


def right(board, turn=0):
    return f"I see them.<action>('count', {board.count})</action><|im_end|>"


def test_only_the_right_count_solves_and_one_answer_ends():
    for count in range(1, 10):
        game = Game(COUNTING, BOARD, max_turns=3)
        assert game.act(f"('count', {count})").done
        assert game.solved == (count == 3)
    game = Game(COUNTING, BOARD, max_turns=3)
    assert game.best_action() == "('count', 3)"
    assert game.result().optimal_turns == 1


@pytest.mark.parametrize(
    "answer",
    ["", "3", "three", "('count', 0)", "('count', 10)", "('count', 3.0)", "('count', ٣)", "('move', 3)",
     "It is ('count', 3)", "('count', 3) ('count', 4)", "<action>('count', 3)",
     "('count', 3" + " " * 99 + ")"],
)  # fmt: skip
def test_what_is_no_answer_burns_a_turn_and_is_reminded(answer):
    game = Game(COUNTING, BOARD, max_turns=2)
    assert "How many discs" in game.observation().text
    outcome = game.act(answer)
    assert (outcome.valid, outcome.done, game.solved) == (False, False, False)
    assert game.observation().text == COUNTING.reminder
    assert game.act(answer).done
    assert game.result().score == 0


def test_the_picture_shows_every_thing_where_it_lies():
    board = Board(("o..", "..x"), SQUARE, "dusk")
    image = board.picture()
    assert image.shape == (32, 64, 3)
    centres = image[CELL_PX // 2 :: CELL_PX, CELL_PX // 2 :: CELL_PX]
    colours = PALETTES["dusk"]
    expected = np.array(
        [[colours.agent, colours.floor, colours.floor, colours.wall],
         [colours.floor, colours.floor, colours.goal, colours.wall]]
    )  # fmt: skip
    assert (centres == expected).all()


def test_digests_tell_task_layout_and_symmetry_apart():
    turned = Board(("..xo", "....", ".o..", ".o.x"), DISC)
    twin = COUNTING.mirrored(turned)
    assert turned.digest != twin.digest
    assert turned.canonical_digest == twin.canonical_digest
    asked_otherwise = Board(turned.rows, SQUARE)
    assert asked_otherwise.layout_digest == turned.layout_digest
    assert asked_otherwise.canonical_layout_digest == turned.canonical_layout_digest
    assert asked_otherwise.canonical_digest != turned.canonical_digest
    assert Board(turned.rows, DISC, "dusk").digest == turned.digest
    assert Board(("oo", ".x"), DISC).digest != Board(("oo.x",), DISC).digest


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rows": ["x.", ".."]}, "0 discs"),
        ({"rows": ["ooooo", "ooooo"]}, "10 discs"),
        ({"rows": ["o.", "."]}, "no rectangle"),
        ({"rows": ["o?"]}, "no rectangle"),
        ({"rows": []}, "0x0 cells"),
        ({"rows": ["o" + "." * 16]}, "1x17 cells"),
        ({"rows": [3]}, "must be texts"),
        ({"kind": "."}, "kind '.'"),
        ({"palette": "neon"}, "neon"),
        ({"answer": 3}, "found"),
    ],
)
def test_boards_that_cannot_be_shown_or_solved_are_refused(change, problem):
    assert COUNTING.load(BOARD.to_json()) == BOARD
    with pytest.raises(DataError, match=problem):
        COUNTING.load(BOARD.to_json() | change)


def test_counts_are_equally_likely_so_that_a_constant_answer_is_worth_a_ninth():
    counts = Counter(COUNTING.draw(random.Random(seed)).count for seed in range(1800))
    assert set(counts) == set(range(1, 10))
    assert max(counts.values()) < 1.25 * min(counts.values())


def test_splits_hold_what_they_say(built):
    assert {name: len(rows) for name, rows in built} == {
        "train": 90, "dev": 128, "test": 64, "test-512": 512, "ood": 192,
    }  # fmt: skip
    boards = {row["variant"]: splits.row_task(row) for row in built.ood}
    assert (boards["bigger"].shape, boards["bigger"].picture().shape) == ((6, 6), (96, 96, 3))
    assert boards["recoloured"].palette == "dusk"
    row = built.train[5]
    assert splits.replay(COUNTING, row["origin"]) == splits.row_task(row)
    assert splits.content_digest(built.test)[:16] == "36b2d507ddf97174"


def test_an_oracle_and_a_constant_are_told_apart(built, tmp_path):
    tasks = [splits.row_task(row) for row in built.test]
    settings = EvaluationSettings(COUNTING, max_turns=2, policy="p")
    oracle = Says(tasks, right)
    records = play(oracle, tasks, settings, records_path=tmp_path / "final.jsonl")
    assert read_records(tmp_path / "final.jsonl") == records
    summary = summarize(records, ceiling(COUNTING, tasks, 2))
    assert (summary.solve_rate, summary.turns_over_optimal, summary.ceiling) == (1.0, 1.0, 1.0)
    words, picture = oracle.seen[0][0]["content"]
    assert words["text"].startswith("How many ")
    assert picture["type"] == "image_url"
    constant = summarize(play(Says(tasks, lambda *_: "('count', 5)"), tasks, settings))
    assert constant.solve_rate < 0.25
    assert constant.format_rate == 1.0


def test_a_record_whose_outcome_was_edited_is_refused(built, tmp_path):
    path, tasks = tmp_path / "a.jsonl", [splits.row_task(row) for row in built.test[:2]]
    play(Says(tasks, lambda *_: "none"), tasks, EvaluationSettings(COUNTING, 1), records_path=path)
    path.write_text(path.read_text().replace('"solved":false', '"solved":true', 1))
    with pytest.raises(DataError, match="do not lead to the solved"):
        read_records(path)


def test_a_film_shows_what_was_said(built):
    task = splits.row_task(built.test[0])

    def late(board, turn):
        return "well" if turn == 0 else right(board)

    (record,) = play(Says([task], late), [task], EvaluationSettings(COUNTING, 3))
    frames = [(frame.action, frame.note) for frame in pictures.film(record)]
    assert frames == [("✕", "no action"), (f"('count', {task.count})", "solved")]
