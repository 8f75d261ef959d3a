import random
from collections import Counter
from itertools import pairwise

import pytest

from training.errors import ConfigError, DataError
from training.mazes import MOVES, Maze, generate, published

SMALL = {"grid": ["#####", "#...#", "#.#.#", "#.#.#", "#####"], "start": [3, 1], "goal": [3, 3]}


@pytest.mark.parametrize("name", ["easy", "hard"])
def test_published_sets_are_the_reference(golden, name):
    mazes = published(name)
    assert len(mazes) == len(golden[name]) == 64
    for maze, entry in zip(mazes, golden[name], strict=True):
        assert list(maze.rows) == entry["grid"]
        assert [list(maze.start), list(maze.goal)] == [entry["start"], entry["goal"]]
        assert maze.moves == entry["moves"]


def test_published_path_lengths():
    assert Counter(maze.moves for maze in published("easy")) == {12: 50, 16: 14}
    assert Counter(maze.moves for maze in published("hard")) == {16: 35, 20: 20, 24: 7, 28: 1, 32: 1}


def test_unknown_set_is_named():
    with pytest.raises(ConfigError, match="'medium'"):
        published("medium")


@pytest.mark.parametrize("cells", [(4, 4), (5, 5), (2, 7), (1, 2)])
def test_generated_mazes_are_trees_with_opposite_corners(cells):
    for seed in range(50):
        maze = generate(seed, cells)
        height, width = cells
        assert maze.cells == cells
        passages = sum(row.count(".") for row in maze.rows) - height * width
        assert passages == height * width - 1
        assert len(maze.distances) == height * width + passages
        assert {maze.start[0], maze.goal[0]} == {1, 2 * height - 1}
        assert {maze.start[1], maze.goal[1]} == {1, 2 * width - 1}


def test_a_seed_gives_the_same_maze_for_ever():
    assert generate(1) == generate(random.Random(1))
    assert [generate(seed).digest for seed in range(3)] == [
        "a14188b92e1f8df8",
        "ac15bb085eab9342",
        "92cdd4107195403c",
    ]


def test_every_spanning_tree_and_corner_is_equally_likely():
    # A ladder of 2x3 cells has 15 spanning trees; with 4 ways of start and goal that makes 60 tasks.
    rng = random.Random(5)
    draws = 12_000
    tasks = Counter(generate(rng, (2, 3)).digest for _ in range(draws))
    assert len(tasks) == 60
    expected = draws / 60
    chi_squared = sum((count - expected) ** 2 / expected for count in tasks.values())
    assert chi_squared < 100  # 59 degrees of freedom: above it once in 1,500 honest runs


def test_path_lengths_are_those_of_the_published_task():
    moves = Counter(generate(seed).moves for seed in range(4000))
    assert moves[12] / 4000 == pytest.approx(0.724, abs=0.025)
    assert (moves[12] + moves[16]) / 4000 == pytest.approx(0.941, abs=0.015)


def test_path_is_a_shortest_walk():
    for maze in (*published("easy"), *published("hard")):
        path = maze.path()
        assert path[0] == maze.start
        assert path[-1] == maze.goal
        assert len(path) == maze.moves + 1
        for here, there in pairwise(path):
            assert (there[0] - here[0], there[1] - here[1]) in MOVES
            assert maze.is_open(there)


def test_shortest_path_where_there_are_loops():
    grid = ["#######", "#.....#", "#.#.#.#", "#.#.#.#", "#.#.###", "#.....#", "#######"]
    maze = Maze.from_json({"grid": grid, "start": [5, 5], "goal": [3, 5]})
    assert maze.moves == 2 + 4 + 2 + 2
    assert maze.best_move(maze.goal) is None


def test_symmetries_share_the_canonical_digest_alone():
    for maze in published("easy")[:16]:
        images = [maze.transformed(symmetry) for symmetry in range(8)]
        assert images[0] == maze
        assert len({image.digest for image in images}) == 8
        assert {image.canonical_digest for image in images} == {maze.canonical_digest}
        assert {image.canonical_layout_digest for image in images} == {maze.canonical_layout_digest}
        assert {image.moves for image in images} == {maze.moves}
    mirror = published("easy")[0].transformed(1)
    assert mirror.rows == tuple(row[::-1] for row in published("easy")[0].rows)


def test_oblong_mazes_keep_their_digest_when_turned():
    maze = generate(3, (2, 4))
    assert {maze.transformed(symmetry).shape for symmetry in range(8)} == {(5, 9), (9, 5)}
    assert {maze.transformed(symmetry).canonical_digest for symmetry in range(8)} == {maze.canonical_digest}


def test_layout_digest_forgets_start_and_goal_and_digest_does_not():
    maze = published("easy")[0]
    reverse = Maze(maze.rows, maze.goal, maze.start)
    assert reverse.layout_digest == maze.layout_digest
    assert reverse.canonical_layout_digest == maze.canonical_layout_digest
    assert reverse.digest != maze.digest


def test_json_round_trip():
    maze = generate(9, (5, 4))
    assert Maze.from_json(maze.to_json()) == maze
    assert Maze.from_json(maze.to_json()).digest == maze.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": ["####", "#..#", "####"]}, "sides must be odd"),
        ({"grid": []}, "sides must be odd"),
        ({"grid": ["#####"] * 103}, "3 to 101"),
        ({"grid": ["#####", "#...#", "#.#.", "#.#.#", "#####"]}, "lengths"),
        ({"grid": ["#####", "#...#", "#.#.#", "#.#..", "#####"]}, "opening in its border"),
        ({"grid": ["#####", "#...#", "#...#", "#.#.#", "#####"]}, "missing post"),
        ({"grid": ["#####", "#.###", "#.###", "#.#.#", "#####"]}, "filled with wall"),
        ({"grid": ["#####", "#.#.#", "#.#.#", "#.#.#", "#####"]}, "no path"),
        ({"grid": ["#####", "#...#", "#.#.#", "#.#x#", "#####"]}, "'x'"),
        ({"grid": "#####"}, "sides must be odd"),
        ({"grid": [1, 2, 3]}, "list of strings"),
        ({"grid": None}, "list of strings"),
        ({"start": [3, 3]}, "the same cell"),
        ({"start": [2, 1]}, "no cell"),
        ({"start": [0, 0]}, "no cell"),
        ({"goal": [3, 9]}, "no cell"),
        ({"goal": [3, -1]}, "no cell"),
        ({"goal": [3]}, "row, column"),
        ({"goal": [3.0, 3]}, "row, column"),
        ({"goal": None}, "row, column"),
        ({"moves": 5}, "says 5 moves"),
    ],
)
def test_broken_mazes_are_refused(change, message):
    with pytest.raises(DataError, match=message):
        Maze.from_json(SMALL | change)


@pytest.mark.parametrize("data", [None, [], {"grid": SMALL["grid"]}])
def test_missing_parts_are_named(data):
    with pytest.raises(DataError, match="needs grid, start and goal"):
        Maze.from_json(data)


@pytest.mark.parametrize("cells", [(0, 4), (1, 1), (4, 51)])
def test_sizes_that_are_no_maze_are_refused(cells):
    with pytest.raises(ConfigError, match="cannot make a maze"):
        generate(0, cells)
