import base64
import io

import numpy as np
import pytest
from PIL import Image

from training.environments.maze import MazeEnvironment
from training.errors import ConfigError, DataError
from training.mazes import MOVES, generate, published
from training.render import PALETTES, RenderStyle, draw, draw_all, image_data_url


def patches(image: np.ndarray, px: int) -> list[list[bytes]]:
    return [
        [image[top : top + px, left : left + px].tobytes() for left in range(0, image.shape[1], px)]
        for top in range(0, image.shape[0], px)
    ]


def test_one_patch_says_all_about_its_cell_and_nothing_else():
    seen: dict[tuple, bytes] = {}
    for seed in range(300):
        maze = generate(seed)
        cells = [(row, column) for row in range(4) for column in range(4)]
        position = cells[seed % 16]
        position = (2 * position[0] + 1, 2 * position[1] + 1)
        found = patches(draw(maze, position), 16)
        for row, column in cells:
            square = (2 * row + 1, 2 * column + 1)
            sides = tuple(maze.is_open((square[0] + down, square[1] + right)) for down, right in MOVES)
            what = (sides, square == position, square == maze.goal)
            assert seen.setdefault(what, found[row][column]) == found[row][column]
    assert len(set(seen.values())) == len(seen) > 30


def test_sides_and_colours():
    maze = published("easy")[0]
    image = draw(maze, maze.start)
    assert image.shape == (64, 64, 3)
    assert image.dtype == np.uint8
    colours = {tuple(int(part) for part in pixel) for pixel in image.reshape(-1, 3)}
    assert colours == {(169, 169, 169), (255, 255, 255), (255, 0, 0), (0, 0, 255)}
    assert (image[:2] == 169).all()
    assert (image[:, -2:] == 169).all()
    row, column = (16 * (at // 2) + 8 for at in maze.start)
    assert tuple(image[row, column]) == (0, 0, 255)


def test_agent_on_the_goal_shows_both():
    maze = published("easy")[0]
    here = draw(maze, maze.goal)
    assert (here == (255, 0, 0)).all(-1).any()
    assert (here == (0, 0, 255)).all(-1).any()
    assert (draw(maze, maze.start) != here).any()


def test_palettes_change_colours_only():
    maze = published("easy")[3]
    plain, other = draw(maze, maze.start), draw(maze, maze.start, RenderStyle.named("dusk"))
    pairs = {(tuple(a), tuple(b)) for a, b in zip(plain.reshape(-1, 3), other.reshape(-1, 3), strict=True)}
    assert len(pairs) == 4
    assert not {a for a, _ in pairs} & {b for _, b in pairs}
    assert set(PALETTES) == {"visgym", "dusk"}
    with pytest.raises(ConfigError, match="'neon'"):
        RenderStyle.named("neon")


def test_between_two_cells_the_agent_sits_astride():
    maze = published("easy")[0]
    between = maze.path()[1]
    image = draw(maze, between)
    top, left = ((at * 8) for at in between)
    assert tuple(image[top, left]) == (0, 0, 255)
    blue = (image == (0, 0, 255)).all(-1)
    assert blue.sum() == (draw(maze, maze.start) == (0, 0, 255)).all(-1).sum()
    with pytest.raises(DataError, match="cannot stand"):
        draw(maze, (0, 0))


def test_other_sizes_are_filled_up_with_wall():
    maze = generate(0, (3, 5))
    style = RenderStyle(cell_px=20, wall_px=3, side_multiple=32)
    image = draw(maze, maze.start, style)
    assert image.shape == (64, 128, 3)
    assert (image[60:] == 169).all()
    assert (image[:, 100:] == 169).all()


@pytest.mark.parametrize("sizes", [{"cell_px": 4}, {"wall_px": 0}, {"wall_px": 5}, {"side_multiple": 0}])
def test_sizes_that_cannot_be_drawn_are_refused(sizes):
    with pytest.raises(ConfigError):
        RenderStyle(**sizes)


def test_pictures_do_not_share_memory():
    maze = published("easy")[0]
    draw(maze, maze.start)[:] = 0
    assert draw(maze, maze.start).any()


def test_draw_all_stacks():
    mazes = published("easy")[:5]
    stack = draw_all(mazes, [maze.start for maze in mazes])
    assert stack.shape == (5, 64, 64, 3)
    assert (stack[2] == draw(mazes[2], mazes[2].start)).all()


def test_data_url_holds_the_same_picture():
    image = draw(published("easy")[0], published("easy")[0].start)
    url = image_data_url(image)
    kind, _, data = url.partition(",")
    assert kind == "data:image/png;base64"
    assert (np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) == image).all()
    assert image_data_url(image.copy()) is url
    assert image_data_url(np.ascontiguousarray(image[:, ::-1])) != url


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 3)),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_other_arrays_are_no_picture(bad):
    with pytest.raises(DataError, match="uint8"):
        image_data_url(bad)


def test_the_size_of_the_picture_is_a_setting_of_the_environment():
    maze = published("hard")[0]
    image = MazeEnvironment(cell_px=24, wall_px=3).world(maze).observe().image
    assert image.shape == (128, 128, 3)  # 5 cells of 24 px, filled up to a multiple of 32
    assert (image == draw(maze, maze.start, RenderStyle(cell_px=24, wall_px=3))).all()
    with pytest.raises(ConfigError, match="cells of 4 px"):
        MazeEnvironment(cell_px=4)
