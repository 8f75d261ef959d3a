"""Thumbnails of mazes and film strips of episodes, drawn again from maze and actions."""

from collections.abc import Sequence
from dataclasses import dataclass

from training.episode import Episode
from training.evaluate import EvaluationRecord
from training.mazes import Maze
from training.protocol import STOP
from training.render import RenderStyle, draw, image_data_url

_ARROWS = {"('move', 0)": "→", "('move', 1)": "↑", "('move', 2)": "←", "('move', 3)": "↓"}
THUMBNAIL = RenderStyle(cell_px=32, wall_px=3)
KINDS = ("gained", "both", "lost", "neither")


@dataclass(frozen=True)
class Frame:
    """One picture that the policy saw, what it did then, and whether that had an effect."""

    image: str
    action: str
    note: str


@dataclass(frozen=True)
class Cell:
    """One maze of the paired grid; `kind` is one of KINDS."""

    number: int
    kind: str
    image: str
    optimal: int
    before: EvaluationRecord
    after: EvaluationRecord


@dataclass(frozen=True)
class Strip:
    """The same maze before and after."""

    cell: Cell
    before: list[Frame]
    after: list[Frame]


def grid(before: Sequence[EvaluationRecord], after: Sequence[EvaluationRecord]) -> list[Cell]:
    """Every maze with its outcome before and after, in the order of `before`; both hold the same keys."""
    later = {record.key: record for record in after}
    cells = []
    for number, record in enumerate(before):
        other = later[record.key]
        maze = Maze.from_json(record.maze)
        kind = {
            (True, True): "both",
            (False, True): "gained",
            (True, False): "lost",
            (False, False): "neither",
        }[record.solved, other.solved]
        image = image_data_url(draw(maze, maze.start, THUMBNAIL))
        cells.append(Cell(number, kind, image, record.optimal_turns, record, other))
    return cells


def strips(cells: Sequence[Cell]) -> list[Strip]:
    """A few telling episodes: three mazes that were gained, and one of each other kind.

    The gained ones were lost in different ways before, where there are different ways: an early stop, no
    turns left, answers that were no action.
    """
    chosen = []
    for kind, count in (("gained", 3), ("both", 1), ("lost", 1), ("neither", 1)):
        found = _longest(cells, kind)
        firsts = {_ending(cell.before): cell for cell in reversed(found)}.values()
        chosen += [*firsts, *(cell for cell in found if cell not in firsts)][:count]
    return [Strip(cell, film(cell.before), film(cell.after)) for cell in chosen]


def film(record: EvaluationRecord) -> list[Frame]:
    """The episode's pictures, one for each turn, and the last one when it ended without a stop."""
    episode = Episode(
        Maze.from_json(record.maze), record.max_turns, record.squares_per_move, reward=record.reward
    )
    frames = []
    for action in record.actions:
        image = image_data_url(episode.observation())
        outcome = episode.act(action)
        if not outcome.valid:
            note = "no action"
        elif outcome.moved:
            note = ""
        elif outcome.done and action not in _ARROWS:
            note = "solved" if episode.solved else "not the goal"
        else:
            note = "wall"
        frames.append(Frame(image, _ARROWS.get(action, "stop" if outcome.valid else "✕"), note))
    if frames and frames[-1].action != "stop":
        frames.append(Frame(image_data_url(episode.observation()), "", "out of turns"))
    return frames


def _ending(record: EvaluationRecord) -> str:
    if record.malformed:
        return "malformed"
    return "stop" if record.actions[-1] == STOP else "out of turns"


def _longest(cells: Sequence[Cell], kind: str) -> list[Cell]:
    """Cells of a kind, the longest shortest paths first: they show most."""
    return sorted(
        (cell for cell in cells if cell.kind == kind), key=lambda cell: (-cell.optimal, cell.number)
    )
