import random
from collections import Counter

import numpy as np
import pytest

from training.maze_batches import draw
from training.mazes import generate


@pytest.mark.parametrize("cells", [(4, 4), (5, 5), (2, 3), (3, 2), (1, 2), (2, 7), (9, 9)])
def test_a_batch_holds_the_mazes_that_are_drawn_one_by_one(cells):
    """9x9 cells need more of a random stream than a batch lays out for some seeds, which are drawn singly."""
    seeds = [f"{'long ' * (n % 4)}{n}" for n in range(40)]
    batch = draw(seeds, cells)
    mazes = [generate(random.Random(seed), cells) for seed in seeds]
    assert batch.mazes() == mazes
    assert batch.moves().tolist() == [maze.moves for maze in mazes]
    assert batch.digests() == [
        (m.digest, m.layout_digest, m.canonical_digest, m.canonical_layout_digest) for m in mazes
    ]


def test_every_spanning_tree_is_equally_likely():
    # 3x3 cells have 192 spanning trees, by Kirchhoff's theorem.
    draws = 192 * 40
    trees = Counter(row.tobytes() for row in draw([f"tree {n}" for n in range(draws)], (3, 3)).floor)
    assert len(trees) == spanning_trees(3, 3) == 192
    chi_squared = sum((count - 40) ** 2 / 40 for count in trees.values())
    assert 130 < chi_squared < 261  # 191 degrees of freedom: outside in one of 1,000 honest draws


def test_path_lengths_are_those_of_the_published_task():
    """Shares of 20,000 draws of the published environment, in facts of the project."""
    assert spanning_trees(4, 4) == 100_352
    moves = draw([f"moves {n}" for n in range(8000)]).moves()
    assert np.mean(moves <= 14) == pytest.approx(0.724, abs=0.02)
    assert np.mean(moves <= 19) == pytest.approx(0.941, abs=0.011)


def spanning_trees(height: int, width: int) -> int:
    """A minor of the Laplacian of the grid, as Kirchhoff counted."""
    at = {(row, column): row * width + column for row in range(height) for column in range(width)}
    laplacian = np.zeros((len(at), len(at)))
    for (row, column), one in at.items():
        for other in ((row + 1, column), (row, column + 1)):
            if other in at:
                pair = [one, at[other]]
                laplacian[np.ix_(pair, pair)] += [[1, -1], [-1, 1]]
    return round(np.linalg.det(laplacian[1:, 1:]))
