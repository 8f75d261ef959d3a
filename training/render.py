"""Pictures of mazes: one tile per cell with thin walls on the cell's own four edges.

Every `cell_px` x `cell_px` patch tells all about its cell (which sides are open, agent, goal), so that a
vision model with patches of that size sees one cell per patch. Tiles are drawn once per style and looked up.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from PIL import Image

from training.errors import ConfigError, DataError
from training.mazes import MOVES, Maze, Square

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Palette:
    """Red, green, blue of each thing, 0 to 255."""

    wall: Colour = (169, 169, 169)
    floor: Colour = (255, 255, 255)
    goal: Colour = (255, 0, 0)
    agent: Colour = (0, 0, 255)


PALETTES: dict[str, Palette] = {
    "visgym": Palette(),
    "dusk": Palette(wall=(70, 60, 110), floor=(245, 235, 205), goal=(0, 150, 70), agent=(230, 120, 0)),
}


@dataclass(frozen=True)
class RenderStyle:
    """How a maze is drawn. Sides are `cell_px` per cell, filled up with wall to `side_multiple` pixels.

    Qwen3-VL takes sides that are multiples of 32 as they are; it rescales all others, and smears the tiles.
    """

    cell_px: int = 16
    wall_px: int = 2
    palette: Palette = field(default_factory=Palette)
    side_multiple: int = 32

    def __post_init__(self) -> None:
        if self.cell_px < 8 or not 1 <= self.wall_px <= self.cell_px // 6:
            raise ConfigError(
                f"cannot draw cells of {self.cell_px} px with walls of {self.wall_px} px",
                "use cells of at least 8 px and walls of 1 px to a sixth of a cell",
            )
        if self.side_multiple < 1:
            raise ConfigError(f"side_multiple = {self.side_multiple} is below 1", "use 32")

    @classmethod
    def named(cls, palette: str, **sizes: int) -> "RenderStyle":
        """A style with one of PALETTES."""
        if palette not in PALETTES:
            raise ConfigError(f"unknown palette {palette!r}", f"use one of {', '.join(PALETTES)}")
        return cls(palette=PALETTES[palette], **sizes)


def draw(maze: Maze, position: Square, style: RenderStyle | None = None) -> np.ndarray:
    """The maze with the agent on `position` (in squares, as `Maze.start`) as uint8 [height, width, 3].

    A position between two cells (one move of one square) shows the agent astride their border.
    """
    style = style or RenderStyle()
    row, column = position
    if not maze.is_open(position):
        raise DataError(
            f"the agent cannot stand on {position}, a wall", "draw positions that moves can reach"
        )
    in_cell = row % 2 == 1 and column % 2 == 1
    content = np.zeros(maze.cells, np.uint8)
    content[maze.goal[0] // 2, maze.goal[1] // 2] = _GOAL
    if in_cell:
        content[row // 2, column // 2] += _AGENT
    tiles = _tiles(style)[_closed_sides(maze.rows), content]
    height, width = maze.cells
    image = tiles.transpose(0, 2, 1, 3, 4).reshape(height * style.cell_px, width * style.cell_px, 3)
    if not in_cell:
        top, left = ((at - 1) * style.cell_px // 2 for at in position)
        image[top : top + style.cell_px, left : left + style.cell_px][_disc(style.cell_px)] = (
            style.palette.agent
        )
    return _padded(image, style)


def draw_all(
    mazes: Sequence[Maze], positions: Sequence[Square], style: RenderStyle | None = None
) -> np.ndarray:
    """`draw` of mazes of one size, stacked: uint8 [count, height, width, 3]."""
    return np.stack([draw(maze, position, style) for maze, position in zip(mazes, positions, strict=True)])


def image_data_url(image: np.ndarray) -> str:
    """A uint8 [height, width, 3] picture as a PNG `data:` URL; the same picture gives the same text."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise DataError(
            f"a picture must be uint8 [height, width, 3], found {image.dtype} {list(image.shape)}",
            "pass what an environment's world shows",
        )
    return _encoded(image.tobytes(), image.shape[0], image.shape[1])


_GOAL, _AGENT = 1, 2


@lru_cache(maxsize=4096)
def _encoded(pixels: bytes, height: int, width: int) -> str:
    stream = io.BytesIO()
    Image.frombytes("RGB", (width, height), pixels).save(stream, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


@lru_cache(maxsize=65536)
def _closed_sides(rows: tuple[str, ...]) -> np.ndarray:
    """uint8 [cells high, cells wide]: bit m is set where the side towards move m is a wall."""
    wall = np.array([list(row) for row in rows]) == "#"
    height, width = len(rows), len(rows[0])
    sides = np.zeros((height // 2, width // 2), np.uint8)
    for move, (down, right) in enumerate(MOVES):
        beside = wall[1 + down : height - 1 + down : 2, 1 + right : width - 1 + right : 2]
        sides |= beside.astype(np.uint8) << move
    return sides


@lru_cache(maxsize=64)
def _disc(size: int) -> np.ndarray:
    """bool [size, size]: the agent."""
    down, right = np.mgrid[0:size, 0:size] - (size - 1) / 2
    return down**2 + right**2 <= (0.25 * size) ** 2


@lru_cache(maxsize=64)
def _tiles(style: RenderStyle) -> np.ndarray:
    """uint8 [closed sides 16, content 4, px, px, 3]; content is the sum of _GOAL and _AGENT."""
    px, edge, palette = style.cell_px, style.wall_px, style.palette
    tiles = np.empty((16, 4, px, px, 3), np.uint8)
    tiles[:] = palette.floor
    inset = edge + 1
    tiles[:, _GOAL::_AGENT, inset : px - inset, inset : px - inset] = palette.goal
    tiles[:, _AGENT:, _disc(px)] = palette.agent
    edges = ((..., slice(px - edge, px)), (slice(0, edge),), (..., slice(0, edge)), (slice(px - edge, px),))
    for closed in range(16):
        for content in range(4):
            tile = tiles[closed, content]
            for move, where in enumerate(edges):
                if closed >> move & 1:
                    tile[(*where, slice(None))] = palette.wall
    return tiles


def _padded(image: np.ndarray, style: RenderStyle) -> np.ndarray:
    below, right = (-side % style.side_multiple for side in image.shape[:2])
    if not below and not right:
        return image
    whole = np.empty((image.shape[0] + below, image.shape[1] + right, 3), np.uint8)
    whole[:] = style.palette.wall
    whole[: image.shape[0], : image.shape[1]] = image
    return whole
