import json
from dataclasses import asdict

import pytest

from training.environments import ENVIRONMENTS, Game, named
from training.errors import ConfigError
from training.mazes import Maze, published
from training.protocol import ACTIONS, STOP
from training.reward import REWARDS
from training.reward import named as reward_named

GRID = ("#####", "#...#", "#.###", "#...#", "#####")
MAZE = Maze(GRID, (1, 3), (3, 3))
SQUARES, CELLS = named("maze"), named("maze", squares_per_move=2)
RIGHT, UP, LEFT, DOWN = ACTIONS[:4]


def test_cell_moves_walls_and_stop():
    game = Game(CELLS, MAZE, max_turns=10)
    assert game.act(UP) == game.act(DOWN)
    assert game.world.position == (1, 3)
    outcome = game.act(LEFT)
    assert (outcome.done, outcome.valid, outcome.moved) == (False, True, True)
    assert game.world.position == (1, 1)
    game.act(DOWN)
    game.act(RIGHT)
    assert game.world.position == MAZE.goal
    assert not game.done
    assert game.act(STOP + "<|im_end|>").done
    result = game.result()
    assert result.solved
    assert result.score == 1.0
    assert result.turns == 6
    assert result.optimal_turns == 4
    assert result.actions == (UP, DOWN, LEFT, DOWN, RIGHT, STOP)
    assert all(type(action) is str for action in result.actions)
    assert json.loads(json.dumps(asdict(result)))["solved"] is True


def test_square_moves_take_twice_as_long():
    game = Game(SQUARES, MAZE, max_turns=10)
    for action in (LEFT, LEFT, DOWN, DOWN, RIGHT, RIGHT):
        assert game.act(action).moved
    assert game.act(STOP).done
    assert game.result().optimal_turns == 7


def test_stop_elsewhere_ends_unsolved():
    game = Game(CELLS, MAZE, max_turns=10)
    assert game.act(STOP).done
    assert not game.result().solved
    assert game.result().score == pytest.approx(0.2)


def test_standing_on_the_goal_without_stop_is_not_solved():
    game = Game(CELLS, MAZE, max_turns=3)
    for action in (LEFT, DOWN, RIGHT):
        outcome = game.act(action)
    assert game.world.position == MAZE.goal
    assert outcome.done
    assert not game.result().solved


def test_malformed_answers_burn_turns():
    game = Game(CELLS, MAZE, max_turns=4)
    assert not game.act("I would say ('move', 2)").valid
    assert not game.act("").valid
    assert game.act(LEFT).moved
    outcome = game.act("z" * 1000)
    assert (outcome.done, outcome.valid, outcome.moved) == (True, False, False)
    result = game.result()
    assert result.format_ok == 0.25
    assert result.score == pytest.approx(0.05)
    assert result.actions == ("", "", LEFT, "")
    assert result.malformed == ("I would say ('move', 2)", "", "z" * 200)


def test_the_agent_never_leaves_the_maze():
    maze = published("easy")[0]
    for squares in (1, 2):
        game = Game(named("maze", squares_per_move=squares), maze, max_turns=200)
        for turn in range(200):
            game.act(ACTIONS[turn * 7 % 11 % 4])
            assert maze.is_open(game.world.position)


@pytest.mark.parametrize("squares", [1, 2])
@pytest.mark.parametrize("name", ["easy", "hard"])
def test_the_best_actions_take_the_optimal_turns(name, squares):
    for maze in published(name):
        game = Game(named("maze", squares_per_move=squares), maze, max_turns=33)
        while not game.done:
            game.act(game.best_action())
        assert game.result().solved
        assert game.turns == game.result().optimal_turns == maze.moves // squares + 1


def test_no_turn_after_the_last_and_a_result_at_any_time():
    game = Game(CELLS, MAZE, max_turns=2)
    assert game.result().turns == 0
    assert game.result().score == 0.0
    game.act(STOP)
    with pytest.raises(RuntimeError, match="over"):
        game.act(STOP)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="max_turns = 0"):
        Game(CELLS, MAZE, max_turns=0)
    with pytest.raises(ConfigError, match="squares_per_move = 3"):
        named("maze", squares_per_move=3)


def test_environments_are_named():
    for name in ENVIRONMENTS:
        environment = named(name)
        assert environment.name == name
        assert named(name, **environment.options) == environment
    with pytest.raises(ConfigError, match=r"'maze-visgim'.*\n.*did you mean 'maze"):
        named("maze-visgim")
    with pytest.raises(ConfigError, match=r"no option 'colour'.*\n.*squares_per_move"):
        named("maze", colour="red")


def test_rewards_are_named_and_take_results():
    game = Game(SQUARES, MAZE, max_turns=1)
    game.act(UP)
    assert REWARDS["solve-format-v1"](game.result()) == game.result().score == pytest.approx(0.2)
    with pytest.raises(ConfigError, match=r"solve-format-v2.*\n.*solve-format-v1"):
        reward_named("solve-format-v2")
