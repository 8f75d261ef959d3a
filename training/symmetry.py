"""Digests of small grids, as they are and up to the 8 rotations and reflections of the square."""

import hashlib
from collections.abc import Callable
from functools import cache
from operator import itemgetter

Shape = tuple[int, int]
Picker = Callable[[str], tuple[str, ...]]

MIRROR = 1


def digest(shape: Shape, text: str) -> str:
    """Names a grid of `shape` (height, width) that is written as one text: 16 hexadecimal digits."""
    return hashlib.sha256(f"{shape[0]}x{shape[1]}:{text}".encode()).hexdigest()[:16]


def canonical_digest(shape: Shape, text: str) -> str:
    """Equal for grids that are rotations or reflections of each other."""
    return digest(*min((into, "".join(pick(text))) for into, pick in _symmetries(*shape)))


def transformed(shape: Shape, text: str, symmetry: int) -> tuple[Shape, str]:
    """The grid rotated or reflected: `symmetry` is 0 (unchanged) to 7, MIRROR mirrors left to right."""
    into, pick = _symmetries(*shape)[symmetry]
    return into, "".join(pick(text))


def orders(shape: Shape) -> list[tuple[Shape, list[int]]]:
    """For each of the 8 symmetries: the shape it gives, and the numbers of the squares in its order."""
    squares = range(shape[0] * shape[1])
    return [(into, list(pick(squares))) for into, pick in _symmetries(*shape)]


@cache
def _symmetries(height: int, width: int) -> tuple[tuple[Shape, Picker], ...]:
    """For each of the 8 symmetries: the shape it gives, and what picks a flat grid's squares in its order."""
    here = [[row * width + column for column in range(width)] for row in range(height)]
    found = []
    for _ in range(4):
        for grid in (here, [row[::-1] for row in here]):
            found.append(((len(grid), len(grid[0])), itemgetter(*(index for row in grid for index in row))))
        here = [list(row) for row in zip(*here[::-1], strict=True)]
    return tuple(found)
