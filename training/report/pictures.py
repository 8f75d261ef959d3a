"""Thumbnails of tasks and film strips of episodes, drawn again from task and actions."""

from collections.abc import Sequence
from dataclasses import dataclass

from training.evaluate import EvaluationRecord
from training.protocol import ACTIONS, STOP
from training.render import image_data_url

_SYMBOLS = {"": "✕", STOP: "stop", **dict(zip(ACTIONS, "→↑←↓", strict=False))}
KINDS = ("gained", "both", "lost", "neither")


@dataclass(frozen=True)
class Frame:
    """One picture that the policy saw, what it did then, and whether that had an effect."""

    image: str
    action: str
    note: str


@dataclass(frozen=True)
class Cell:
    """One task of the paired grid; `kind` is one of KINDS."""

    number: int
    kind: str
    image: str
    optimal: int
    before: EvaluationRecord
    after: EvaluationRecord


@dataclass(frozen=True)
class Strip:
    """The same task before and after."""

    cell: Cell
    before: list[Frame]
    after: list[Frame]


def grid(before: Sequence[EvaluationRecord], after: Sequence[EvaluationRecord]) -> list[Cell]:
    """Every task with its outcome before and after, in the order of `before`; both hold the same keys."""
    later = {record.key: record for record in after}
    cells = []
    for number, record in enumerate(before):
        other = later[record.key]
        kind = {
            (True, True): "both",
            (False, True): "gained",
            (True, False): "lost",
            (False, False): "neither",
        }[record.solved, other.solved]
        image = image_data_url(record.replay().observation().image)
        cells.append(Cell(number, kind, image, record.optimal_turns, record, other))
    return cells


def strips(cells: Sequence[Cell]) -> list[Strip]:
    """A few telling episodes: three tasks that were gained, and one of each other kind.

    The gained ones were lost in different ways before, where there are different ways: a wrong end, no
    turns left, answers that were no action.
    """
    chosen = []
    for kind, count in (("gained", 3), ("both", 1), ("lost", 1), ("neither", 1)):
        found = _longest(cells, kind)
        firsts = {_ending(cell.before): cell for cell in reversed(found)}.values()
        chosen += [*firsts, *(cell for cell in found if cell not in firsts)][:count]
    return [Strip(cell, film(cell.before), film(cell.after)) for cell in chosen]


def film(record: EvaluationRecord) -> list[Frame]:
    """The episode's pictures, one for each turn, and the last one when no action ended it."""
    game = record.replay()
    frames = []
    for action in record.actions:
        image = image_data_url(game.observation().image)
        outcome = game.act(action)
        if not outcome.valid:
            note = "no action"
        elif game.world.over:
            note = "solved" if game.solved else "not solved"
        else:
            note = "" if outcome.moved else "no effect"
        frames.append(Frame(image, _SYMBOLS.get(action, action), note))
    if frames and not game.world.over:
        frames.append(Frame(image_data_url(game.observation().image), "", "out of turns"))
    return frames


def _ending(record: EvaluationRecord) -> str:
    if record.malformed:
        return "malformed"
    game = record.replay()
    for action in record.actions:
        game.act(action)
    return "ended" if game.world.over else "out of turns"


def _longest(cells: Sequence[Cell], kind: str) -> list[Cell]:
    """Cells of a kind, the longest shortest paths first: they show most."""
    return sorted(
        (cell for cell in cells if cell.kind == kind), key=lambda cell: (-cell.optimal, cell.number)
    )
