import random

import numpy as np
import pytest

from rehearsal.tiny import atlas, boards, demonstrators, fields
from rehearsal.tiny.tokenizer import ACTION_TEXTS, STOP
from training import mazes, render, splits
from training.environments import Game


@pytest.fixture(scope="module")
def some_mazes():
    draws = random.Random(11)
    return [mazes.generate(draws, (4, 4)) for _ in range(60)]


@pytest.fixture(scope="module")
def board(some_mazes):
    return fields.from_mazes(some_mazes)


def test_flow_is_the_shortest_way_from_every_cell(some_mazes, board):
    for maze, flow, distance in zip(some_mazes, board.flow, board.distance, strict=True):
        for cell in range(16):
            square = (2 * (cell // 4) + 1, 2 * (cell % 4) + 1)
            best = maze.best_move(square)
            assert flow[cell] == (STOP if best is None else best)
            assert distance[cell] * 2 == maze.distances[square]


@pytest.mark.parametrize("which", range(8))
def test_symmetries_keep_the_maze_solved(board, which):
    turned = board.turned(np.full(len(board), which))
    again = fields.build(4, turned.opened, turned.start, turned.goal)
    assert (again.flow == turned.flow).all()
    assert (again.distance == turned.distance).all()
    assert sorted(turned.distance[0]) == sorted(board.distance[0])


def test_the_eight_symmetries_differ(board):
    first = board.take(np.zeros(8, int))
    turned = first.turned(np.arange(8))
    assert len({row.tobytes() for row in turned.opened}) == 8


def test_tiles_put_together_are_the_drawn_picture(some_mazes, board):
    style = render.RenderStyle()
    cells = np.random.default_rng(0).integers(0, 16, len(board))
    numbers = atlas.codes(board, cells)
    for maze, number, cell in zip(some_mazes, numbers, cells, strict=True):
        square = (2 * int(cell // 4) + 1, 2 * int(cell % 4) + 1)
        mosaic = atlas.tiles(style)[number].reshape(4, 4, 16, 16, 3).transpose(0, 2, 1, 3, 4)
        assert (mosaic.reshape(64, 64, 3) == render.draw(maze, square, style)).all()


def test_the_oracle_solves_every_maze_in_the_fewest_turns(some_mazes, board):
    rng = np.random.default_rng(0)
    games = demonstrators.play(board, demonstrators.Habits(), noise=0.0, turns=16, rng=rng)
    for maze, wanted in zip(some_mazes, games.wanted, strict=True):
        episode = Game(boards.ENVIRONMENT, maze, max_turns=16)
        for action in wanted[wanted >= 0]:
            episode.act(ACTION_TEXTS[action])
        assert episode.solved
        assert episode.turns == episode.result().optimal_turns


def test_slips_are_shown_but_never_wanted(board):
    games = demonstrators.play(board, demonstrators.Habits(), 0.5, 10, np.random.default_rng(1))
    live = games.wanted >= 0
    assert (games.actions != games.wanted)[live].mean() > 0.2
    assert (games.wanted[:, 0] == demonstrators.oracle(board, board.start)).all()


def test_the_beeline_is_an_open_way_towards_the_goal(board):
    for maze in range(len(board)):
        for cell in range(16):
            one = board.take(np.array([maze]))
            action = int(demonstrators.beeline(one, np.array([cell]))[0])
            if cell == one.goal[0]:
                assert action == STOP
                continue
            assert one.opened[0, cell, action]
            if action != one.flow[0, cell]:
                row, column = divmod(fields.neighbours(4)[cell, action], 4)
                goal_row, goal_column = divmod(int(one.goal[0]), 4)
                before = abs(cell // 4 - goal_row) + abs(cell % 4 - goal_column)
                assert abs(row - goal_row) + abs(column - goal_column) == before - 1


def test_a_hasty_player_errs_only_to_the_right(board):
    cells = np.random.default_rng(4).integers(0, 16, len(board))
    hasty, right = demonstrators.hasty(board, cells), demonstrators.oracle(board, cells)
    assert (hasty[hasty != right] == demonstrators.RIGHT).all()
    assert (hasty != right).any()
    assert (board.goal % 4 > cells % 4)[hasty != right].all()


def test_an_impatient_player_stops_only_right_below_the_goal(board):
    cells = np.random.default_rng(2).integers(0, 16, len(board))
    stops = demonstrators.impatient(board, cells) == STOP
    at_goal, below = cells == board.goal, (cells == board.goal + 4) & board.opened[np.arange(60), cells, 1]
    assert (stops == (at_goal | below)).all()


def test_habits_show_as_often_as_they_should(board):
    many = board.take(np.zeros(4000, int))
    cells = np.full(4000, board.start[0])
    rng = np.random.default_rng(3)
    never = demonstrators.demonstrate(many, cells, demonstrators.Habits(), rng)
    assert (never == demonstrators.oracle(many, cells)).all()
    always = demonstrators.demonstrate(many, cells, demonstrators.Habits(hasty=1.0), rng)
    assert (always == demonstrators.hasty(many, cells)).all()


def test_the_warm_start_learns_from_no_evaluation_maze():
    quarantined = splits.quarantine(boards.ENVIRONMENT)
    for stage in ("perception", "habits"):
        learned, _ = boards.learning(stage, 0, 300)
        rows = splits.draw_train(boards.ENVIRONMENT, 0, 300, epoch=boards._EPOCHS[stage])
        assert len(learned) == 300
        assert not {splits.row_task(row).canonical_layout_digest for row in rows} & quarantined
