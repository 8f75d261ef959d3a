import json
from dataclasses import asdict

import pytest

from training.episode import Episode, optimal_turns
from training.errors import ConfigError
from training.mazes import Maze, published
from training.protocol import ACTIONS, STOP
from training.reward import REWARDS, named

GRID = ("#####", "#...#", "#.###", "#...#", "#####")
MAZE = Maze(GRID, (1, 3), (3, 3))
RIGHT, UP, LEFT, DOWN = ACTIONS[:4]


def test_cell_moves_walls_and_stop():
    episode = Episode(MAZE, max_turns=10, squares_per_move=2)
    assert episode.act(UP) == episode.act(DOWN)
    assert episode.position == (1, 3)
    outcome = episode.act(LEFT)
    assert (outcome.done, outcome.valid, outcome.moved) == (False, True, True)
    assert episode.position == (1, 1)
    episode.act(DOWN)
    episode.act(RIGHT)
    assert episode.position == MAZE.goal
    assert not episode.done
    assert episode.act(STOP + "<|im_end|>").done
    result = episode.result()
    assert result.solved
    assert result.score == 1.0
    assert result.turns == 6
    assert result.optimal_turns == 4
    assert result.actions == (UP, DOWN, LEFT, DOWN, RIGHT, STOP)
    assert all(type(action) is str for action in result.actions)
    assert json.loads(json.dumps(asdict(result)))["solved"] is True


def test_square_moves_take_twice_as_long():
    episode = Episode(MAZE, max_turns=10)
    for action in (LEFT, LEFT, DOWN, DOWN, RIGHT, RIGHT):
        assert episode.act(action).moved
    assert episode.act(STOP).done
    assert episode.result().optimal_turns == 7


def test_stop_elsewhere_ends_unsolved():
    episode = Episode(MAZE, max_turns=10, squares_per_move=2)
    assert episode.act(STOP).done
    assert not episode.result().solved
    assert episode.result().score == pytest.approx(0.2)


def test_standing_on_the_goal_without_stop_is_not_solved():
    episode = Episode(MAZE, max_turns=3, squares_per_move=2)
    for action in (LEFT, DOWN, RIGHT):
        outcome = episode.act(action)
    assert episode.position == MAZE.goal
    assert outcome.done
    assert not episode.result().solved


def test_malformed_answers_burn_turns():
    episode = Episode(MAZE, max_turns=4, squares_per_move=2)
    assert not episode.act("I would say ('move', 2)").valid
    assert not episode.act("").valid
    assert episode.act(LEFT).moved
    outcome = episode.act("z" * 1000)
    assert (outcome.done, outcome.valid, outcome.moved) == (True, False, False)
    result = episode.result()
    assert result.format_ok == 0.25
    assert result.score == pytest.approx(0.05)
    assert result.actions == ("", "", LEFT, "")
    assert result.malformed == ("I would say ('move', 2)", "", "z" * 200)


def test_the_agent_never_leaves_the_maze():
    maze = published("easy")[0]
    for squares in (1, 2):
        episode = Episode(maze, max_turns=200, squares_per_move=squares)
        for turn in range(200):
            episode.act(ACTIONS[turn * 7 % 11 % 4])
            assert maze.is_open(episode.position)


@pytest.mark.parametrize("squares", [1, 2])
@pytest.mark.parametrize("name", ["easy", "hard"])
def test_the_best_actions_take_the_optimal_turns(name, squares):
    for maze in published(name):
        episode = Episode(maze, max_turns=33, squares_per_move=squares)
        while not episode.done:
            episode.act(episode.best_action())
        assert episode.result().solved
        assert episode.turns == episode.result().optimal_turns == optimal_turns(maze, squares)


def test_no_turn_after_the_last_and_a_result_at_any_time():
    episode = Episode(MAZE, max_turns=2, squares_per_move=2)
    assert episode.result().turns == 0
    assert episode.result().score == 0.0
    episode.act(STOP)
    with pytest.raises(RuntimeError, match="over"):
        episode.act(STOP)


@pytest.mark.parametrize("settings", [{"max_turns": 0}, {"max_turns": 5, "squares_per_move": 3}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError):
        Episode(MAZE, **settings)


def test_rewards_are_named_and_take_results():
    episode = Episode(MAZE, max_turns=1)
    episode.act(UP)
    assert REWARDS["solve-format-v1"](episode.result()) == episode.result().score == pytest.approx(0.2)
    with pytest.raises(ConfigError, match=r"solve-format-v2.*\n.*solve-format-v1"):
        named("solve-format-v2")
