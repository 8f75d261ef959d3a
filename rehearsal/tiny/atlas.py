"""Pictures as tiles: a maze picture is a mosaic of at most 64 different patches.

A tile is what `training.render.draw` shows of one cell. Learning from tile numbers instead of pictures lets a
training step embed each distinct patch once.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rehearsal.tiny.fields import STEPS, Fields
from training import mazes, render

GOAL, AGENT = 1, 2
CONTENTS = 4
_CLOSED = np.array([1, 2, 4, 8])
TILES = 16 * CONTENTS
_WALLED_IN = 15
_CORNER, _CENTRE, _OTHER_CORNER = (1, 1), (3, 3), (5, 5)


def codes(fields: Fields, cells: np.ndarray) -> np.ndarray:
    """Tile numbers with the agent on `cells`: int64 [N, cells of a maze]."""
    numbers = (~fields.opened * _CLOSED).sum(2) * CONTENTS
    games = np.arange(len(fields))
    numbers[games, fields.goal] += GOAL
    numbers[games, cells] += AGENT
    return numbers


@cache
def tiles(style: render.RenderStyle) -> np.ndarray:
    """uint8 [TILES, px, px, 3], cut out of pictures; a cell with four walls never occurs and stays black."""
    px = style.cell_px
    found = np.zeros((16, CONTENTS, px, px, 3), np.uint8)
    for closed in range(_WALLED_IN):
        rows = _surrounded(closed)
        for content in range(CONTENTS):
            goal = _CENTRE if content & GOAL else _CORNER
            maze = mazes.Maze(rows, _OTHER_CORNER, goal)
            picture = render.draw(maze, _CENTRE if content & AGENT else _CORNER, style)
            found[closed, content] = picture[px : 2 * px, px : 2 * px]
    return found.reshape(TILES, px, px, 3)


def _surrounded(closed: int) -> tuple[str, ...]:
    """A grid of 3 x 3 cells, all open to each other but for the closed sides of the middle one."""
    grid = np.full((7, 7), "#")
    grid[1:6, 1:6] = "."
    grid[2:5:2, 2:5:2] = "#"
    row, column = _CENTRE
    for move, (down, right) in enumerate(STEPS):
        if closed >> move & 1:
            grid[row + down, column + right] = "#"
    return tuple("".join(line) for line in grid)


def patches(style: render.RenderStyle) -> np.ndarray:
    """The tiles as the image processor would give them: float32 [TILES, 3 * 2 * px * px] in -1..1."""
    scaled = tiles(style).astype(np.float32) / 255 * 2 - 1
    channels_first = scaled.transpose(0, 3, 1, 2)[:, :, None]
    return np.repeat(channels_first, 2, axis=2).reshape(TILES, -1)
