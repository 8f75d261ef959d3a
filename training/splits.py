"""Train, dev, test and out-of-distribution mazes: disjoint up to symmetry, replayable, named by content.

The evaluation splits never change: they do not depend on the seed of a run, so runs can be compared and
whatever trains anything (warm start included) can keep clear of them through `quarantine`. Only the
training mazes are drawn from the run's seed. Disjoint means here: no two splits share a grid, up to the 8
symmetries of the square, wherever start and goal are. That is stricter than sharing no task.
"""

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from training.errors import ConfigError, DataError
from training.files import write_atomic
from training.mazes import Maze, generate, published

Row = dict[str, Any]

EVALUATION_SEED = "skypod evaluation 1"
MIRROR = 1
LARGEST = {"dev": 256, "test_512": 512, "ood": 192}
REJECTED_IN_A_ROW = 2000


@dataclass(frozen=True)
class Sizes:
    """Rows of each split. The published test always has its 64; `ood` is a third each of three variants."""

    train: int
    dev: int = 128
    test_512: int = 512
    ood: int = 192

    def __post_init__(self) -> None:
        for name, largest in LARGEST.items():
            if not 0 <= getattr(self, name) <= largest:
                raise ConfigError(f"{name} split of {getattr(self, name)} mazes", f"use 0 to {largest}")
        if self.train < 0 or self.ood % 3:
            raise ConfigError(
                f"splits of train = {self.train}, ood = {self.ood} mazes",
                "train cannot be negative, and ood must be a multiple of 3",
            )


@dataclass(frozen=True)
class Splits:
    """The rows of every split.

    A row is {"maze": as `Maze.to_json`, "digest", "canonical" (task up to symmetry), "split", "moves"
    (shortest path in squares), "variant", "palette" (of training.render.PALETTES), "origin"}. `origin` is the
    seed string of the draw, or says which published maze it is.
    """

    train: tuple[Row, ...]
    dev: tuple[Row, ...]
    test: tuple[Row, ...]
    test_512: tuple[Row, ...]
    ood: tuple[Row, ...]

    def __iter__(self) -> Iterator[tuple[str, tuple[Row, ...]]]:
        """(name, rows) of every split; the names are "train", "dev", "test", "test-512", "ood"."""
        return iter(
            (
                ("train", self.train),
                ("dev", self.dev),
                ("test", self.test),
                ("test-512", self.test_512),
                ("ood", self.ood),
            )
        )


@dataclass(frozen=True)
class Overlap:
    """How many rows of one split have a twin in another: the same task, the same grid, or up to symmetry."""

    exact: int
    same_layout: int
    same_up_to_symmetry: int


def build(
    seed: int, sizes: Sizes, *, cells: tuple[int, int] = (4, 4), max_moves: int | None = None
) -> Splits:
    """All splits of a run, checked for being disjoint.

    `cells` and `max_moves` (longest shortest path, in squares) shape the training mazes only.
    """
    pool = evaluation_pool()
    third, ood = sizes.ood // 3, LARGEST["ood"] // 3
    splits = Splits(
        train=draw_train(seed, sizes.train, cells=cells, max_moves=max_moves),
        dev=pool.dev[: sizes.dev],
        test=pool.test,
        test_512=pool.test_512[: sizes.test_512],
        ood=tuple(row for start in range(0, 3 * ood, ood) for row in pool.ood[start : start + third]),
    )
    check_disjoint(splits)
    return splits


@cache
def evaluation_pool() -> Splits:
    """The evaluation splits at their largest, without training rows."""
    test = tuple(
        row_of(maze, "test", origin=f"visgym maze_2d/easy seed {seed}")
        for seed, maze in enumerate(published("easy"))
    )
    taken = {maze.canonical_layout_digest for maze in published("easy")}
    test_512 = tuple(_draw(EVALUATION_SEED, "test-512", LARGEST["test_512"], taken=taken))
    dev = tuple(_draw(EVALUATION_SEED, "dev", LARGEST["dev"], taken=taken))
    third = LARGEST["ood"] // 3
    bigger = _draw(EVALUATION_SEED, "ood", third, taken=taken, cells=(5, 5), variant="bigger")
    mirrored = (
        row_of(maze.transformed(MIRROR), "ood", variant="mirrored", origin=f"mirror image of test {index}")
        for index, maze in enumerate(published("easy")[:third])
    )
    recoloured = _draw(
        EVALUATION_SEED, "ood", third, taken=taken, variant="recoloured", palette="dusk", first=third
    )
    return Splits(train=(), dev=dev, test=test, test_512=test_512, ood=(*bigger, *mirrored, *recoloured))


@cache
def quarantine() -> frozenset[str]:
    """`canonical_layout_digest` of every evaluation maze: nothing that trains may draw one of these."""
    return frozenset(row_maze(row).canonical_layout_digest for _, rows in evaluation_pool() for row in rows)


def draw_train(
    seed: int, count: int, *, epoch: int = 0, cells: tuple[int, int] = (4, 4), max_moves: int | None = None
) -> tuple[Row, ...]:
    """`count` training rows, distinct up to symmetry and clear of the quarantine.

    They are a function of (seed, epoch, row); a smaller count gives the first of them.
    """
    return tuple(
        _draw(
            f"{seed} epoch {epoch}",
            "train",
            count,
            quarantined=quarantine(),
            cells=cells,
            max_moves=max_moves,
        )
    )


def row_of(maze: Maze, split: str, *, origin: str, variant: str = "plain", palette: str = "visgym") -> Row:
    """The row of a maze; see `Splits`."""
    return {
        "maze": maze.to_json(),
        "digest": maze.digest,
        "canonical": maze.canonical_digest,
        "split": split,
        "moves": maze.moves,
        "variant": variant,
        "palette": palette,
        "origin": origin,
    }


def row_maze(row: Row) -> Maze:
    """The maze of a row, checked against the digests and the path length that the row states."""
    maze = Maze.from_json(row["maze"])
    for name, found in (
        ("digest", maze.digest),
        ("canonical", maze.canonical_digest),
        ("moves", maze.moves),
    ):
        if row.get(name) != found:
            raise DataError(
                f"row of split {row.get('split')!r} states {name} {row.get(name)!r}, its maze has {found!r}",
                "build the splits again",
            )
    return maze


def replay(origin: str, cells: tuple[int, int] = (4, 4)) -> Maze:
    """The maze that a drawn row came from, from its `origin`."""
    return generate(random.Random(origin), cells)  # noqa: S311 (a replayable draw)


def overlap(rows: Iterable[Row], others: Iterable[Row]) -> Overlap:
    """How many of `rows` have a twin among `others`."""
    mazes, twins = ([Maze.from_json(row["maze"]) for row in part] for part in (rows, others))
    counts = []
    for name in ("digest", "layout_digest", "canonical_layout_digest"):
        known = {getattr(maze, name) for maze in twins}
        counts.append(sum(getattr(maze, name) in known for maze in mazes))
    return Overlap(*counts)


def check_disjoint(splits: Splits) -> None:
    """DataError when a row is there twice, or two splits share a grid up to symmetry.

    The mirrored rows of `ood` are twins of the published test on purpose, and of nothing else.
    """
    owner: dict[str, tuple[str, str]] = {}
    for split, rows in splits:
        tasks: set[str] = set()
        for row in rows:
            if row["canonical"] in tasks:
                raise DataError(f"maze {row['digest']} is twice in split {split}", "build the splits again")
            tasks.add(row["canonical"])
            layout = row_maze(row).canonical_layout_digest
            other, digest = owner.setdefault(layout, (split, row["digest"]))
            if other != split and not (row["variant"] == "mirrored" and other == "test"):
                raise DataError(
                    f"maze {row['digest']} of split {split} is maze {digest} of split {other} up to symmetry",
                    "build the splits again; training mazes must keep clear of splits.quarantine()",
                )


def content_digest(rows: Sequence[Row]) -> str:
    """SHA-256 of the rows as `write` writes them, so it is also the digest of the file."""
    return hashlib.sha256(_lines(rows)).hexdigest()


def write(path: Path, rows: Sequence[Row]) -> str:
    """Writes rows as JSON lines and, beside them, `<name>.sha256` in the form of sha256sum; the digest."""
    content = _lines(rows)
    digest = hashlib.sha256(content).hexdigest()
    write_atomic(path, content)
    write_atomic(_digest_path(path), f"{digest}  {path.name}\n")
    return digest


def read(path: Path, digest: str | None = None) -> tuple[Row, ...]:
    """Rows that `write` wrote. `digest` is the expected one, by default that of the file beside it.

    Raises DataError when the file was changed, its digest is missing, or a row does not fit its maze.
    """
    try:
        content = path.read_bytes()
        expected = digest or _digest_path(path).read_text(encoding="utf-8").split()[0]
    except (OSError, IndexError) as error:
        raise DataError(
            f"cannot read split {path.name} and its digest: {error}", "build the splits again"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(
            f"split {path.name} was changed: its content is {found}, it was written as {expected}",
            "restore the file, or build the splits again under a new run",
        )
    rows = tuple(json.loads(line) for line in content.splitlines())
    for row in rows:
        row_maze(row)
    return rows


def _draw(
    seed: str,
    split: str,
    count: int,
    *,
    quarantined: frozenset[str] = frozenset(),
    taken: set[str] | None = None,
    cells: tuple[int, int] = (4, 4),
    max_moves: int | None = None,
    variant: str = "plain",
    palette: str = "visgym",
    first: int = 0,
) -> Iterator[Row]:
    """Draws rows `first` on. `taken` (grids up to symmetry) is kept clear of and grows by the rows drawn."""
    tasks: set[str] = set()
    for index in range(first, first + count):
        for attempt in range(REJECTED_IN_A_ROW):
            origin = f"{seed} {split} {index} {attempt}"
            maze = replay(origin, cells)
            layout = maze.canonical_layout_digest
            if layout in quarantined or (taken is not None and layout in taken):
                continue
            if maze.canonical_digest in tasks or (max_moves is not None and maze.moves > max_moves):
                continue
            break
        else:
            raise DataError(
                f"no new maze of {cells} cells after {index - first} of {count} rows of {split}",
                "ask for fewer rows, larger mazes or longer paths",
            )
        tasks.add(maze.canonical_digest)
        if taken is not None:
            taken.add(layout)
        yield row_of(maze, split, origin=origin, variant=variant, palette=palette)


def _lines(rows: Sequence[Row]) -> bytes:
    return "".join(json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n" for row in rows).encode()


def _digest_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")
