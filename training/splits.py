"""Train, dev, test and out-of-distribution tasks: disjoint up to symmetry, replayable, named by content.

The evaluation splits never change: they do not depend on the seed of a run, so runs can be compared and
whatever trains anything (warm start included) can keep clear of them through `quarantine`. Only the
training tasks are drawn from the run's seed. Disjoint means here: no two splits share a layout (a maze's
grid), up to the 8 symmetries of the square, whatever is asked of it. That is stricter than sharing no task.
"""

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from training.environments import Environment, Task, named
from training.environments.base import BIGGER, MIRRORED, PLAIN, RECOLOURED
from training.errors import ConfigError, DataError
from training.files import parse_json, read_whole, write_atomic
from training.recipe import Recipe

Row = dict[str, Any]

EVALUATION_SEED = "skypod evaluation 1"
TEST = 64
LARGEST = {"dev": 256, "test_512": 512, "ood": 192}
REJECTED_IN_A_ROW = 2000


@dataclass(frozen=True)
class Sizes:
    """Rows of each split. The test always has its 64; `ood` is a third each of three variants."""

    train: int
    dev: int = 128
    test_512: int = 512
    ood: int = 192

    def __post_init__(self) -> None:
        for name, largest in LARGEST.items():
            if not 0 <= getattr(self, name) <= largest:
                raise ConfigError(f"{name} split of {getattr(self, name)} tasks", f"use 0 to {largest}")
        if self.train < 0 or self.ood % 3:
            raise ConfigError(
                f"splits of train = {self.train}, ood = {self.ood} tasks",
                "train cannot be negative, and ood must be a multiple of 3",
            )


@dataclass(frozen=True)
class Splits:
    """The rows of every split.

    A row is {"environment": its name, "task": as `Task.to_json`, "digest", "canonical" (task up to symmetry),
    "split", "variant", "origin"}. `origin` is the seed string of the draw, or names the published task.
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


def build(environment: Environment, seed: int, sizes: Sizes, *, max_turns: int | None = None) -> Splits:
    """All splits of a run, checked for being disjoint.

    `max_turns` leaves out training tasks that no policy can solve in so many turns.
    """
    pool = evaluation_pool(environment)
    third, ood = sizes.ood // 3, LARGEST["ood"] // 3
    splits = Splits(
        train=draw_train(environment, seed, sizes.train, max_turns=max_turns),
        dev=pool.dev[: sizes.dev],
        test=pool.test,
        test_512=pool.test_512[: sizes.test_512],
        ood=tuple(row for start in range(0, 3 * ood, ood) for row in pool.ood[start : start + third]),
    )
    check_disjoint(splits)
    return splits


def of_recipe(chosen: Recipe) -> Splits:
    """The splits of a run of this recipe, always the same ones."""
    return build(
        chosen.environment.make(),
        chosen.data.seed,
        Sizes(
            train=chosen.data.train_mazes,
            dev=chosen.data.dev_mazes,
            test_512=chosen.data.test_512_mazes,
            ood=chosen.data.ood_mazes,
        ),
        max_turns=chosen.environment.max_turns,
    )


@cache
def evaluation_pool(environment: Environment) -> Splits:
    """The evaluation splits at their largest, without training rows."""
    taken: set[str] = set()
    test = tuple(
        row_of(environment, task, "test", origin=origin) for origin, task in environment.published()[:TEST]
    )
    taken |= {row_task(row).canonical_layout_digest for row in test}
    draw = _Draw(environment, EVALUATION_SEED, taken=taken)
    test = test or tuple(draw.rows("test", TEST))
    test_512 = tuple(draw.rows("test-512", LARGEST["test_512"]))
    dev = tuple(draw.rows("dev", LARGEST["dev"]))
    third = LARGEST["ood"] // 3
    bigger = draw.rows("ood", third, variant=BIGGER)
    mirrored = (
        row_of(
            environment,
            environment.mirrored(row_task(row)),
            "ood",
            variant=MIRRORED,
            origin=f"mirror image of test {index}",
        )
        for index, row in enumerate(test[:third])
    )
    recoloured = draw.rows("ood", third, variant=RECOLOURED, first=third)
    return Splits(train=(), dev=dev, test=test, test_512=test_512, ood=(*bigger, *mirrored, *recoloured))


@cache
def quarantine(environment: Environment) -> frozenset[str]:
    """`canonical_layout_digest` of every evaluation task: nothing that trains may draw one of these."""
    pool = evaluation_pool(environment)
    return frozenset(row_task(row).canonical_layout_digest for _, rows in pool for row in rows)


def draw_train(
    environment: Environment, seed: int, count: int, *, epoch: int = 0, max_turns: int | None = None
) -> tuple[Row, ...]:
    """`count` training rows, distinct up to symmetry, clear of the quarantine, solvable in `max_turns`.

    They are a function of (seed, epoch, row); a smaller count gives the first of them.
    """
    draw = _Draw(
        environment, f"{seed} epoch {epoch}", quarantined=quarantine(environment), max_turns=max_turns
    )
    return tuple(draw.rows("train", count))


def row_of(environment: Environment, task: Task, split: str, *, origin: str, variant: str = PLAIN) -> Row:
    """The row of a task; see `Splits`."""
    return {
        "environment": environment.name,
        "task": task.to_json(),
        "digest": task.digest,
        "canonical": task.canonical_digest,
        "split": split,
        "variant": variant,
        "origin": origin,
    }


def row_task(row: Row) -> Any:
    """The task of a row, checked against the digests that the row states."""
    try:
        task = named(row["environment"]).load(row["task"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"a row of a split is no task: {error!r}", "build the splits again") from None
    for name, found in (("digest", task.digest), ("canonical", task.canonical_digest)):
        if row.get(name) != found:
            raise DataError(
                f"row of split {row.get('split')!r} states {name} {row.get(name)!r}, its task has {found!r}",
                "build the splits again",
            )
    return task


def replay(environment: Environment, origin: str, variant: str = PLAIN) -> Any:
    """The task that a drawn row came from, from its `origin`."""
    return environment.draw(random.Random(origin), variant)  # noqa: S311 (a replayable draw)


def check_disjoint(splits: Splits) -> None:
    """DataError when a row is there twice, or two splits share a layout up to symmetry.

    The mirrored rows of `ood` are twins of the test on purpose, and of nothing else.
    """
    owner: dict[str, tuple[str, str]] = {}
    for split, rows in splits:
        tasks: set[str] = set()
        for row in rows:
            if row["canonical"] in tasks:
                raise DataError(f"task {row['digest']} is twice in split {split}", "build the splits again")
            tasks.add(row["canonical"])
            layout = row_task(row).canonical_layout_digest
            other, digest = owner.setdefault(layout, (split, row["digest"]))
            if other != split and not (row["variant"] == MIRRORED and other == "test"):
                raise DataError(
                    f"task {row['digest']} of split {split} is task {digest} of split {other} up to symmetry",
                    "build the splits again; training tasks must keep clear of splits.quarantine",
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

    Raises DataError when the file was changed, its digest is missing, or a row does not fit its task.
    """
    try:
        content = read_whole(path)
        expected = digest or _digest_path(path).read_text(encoding="utf-8").split()[0]
    except (OSError, IndexError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read split {path.name} and its digest: {error}", "build the splits again"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(
            f"split {path.name} was changed: its content is {found}, it was written as {expected}",
            "restore the file, or build the splits again under a new run",
        )
    try:
        rows = tuple(parse_json(line) for line in content.splitlines())
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"split {path.name} has a line that is no row: {error}", "build the splits again"
        ) from None
    seen: set[str] = set()
    for row in rows:
        digest = row_task(row).digest
        if digest in seen:
            raise DataError(f"split {path.name} holds task {digest} twice", "build the splits again")
        seen.add(digest)
    return rows


@dataclass
class _Draw:
    """Draws rows of one seed. `taken` (layouts up to symmetry) is kept clear of, and grows by them."""

    environment: Environment
    seed: str
    quarantined: frozenset[str] = frozenset()
    taken: set[str] | None = None
    max_turns: int | None = None

    def rows(self, split: str, count: int, *, variant: str = PLAIN, first: int = 0) -> Iterator[Row]:
        """`count` rows, numbered from `first`."""
        tasks: set[str] = set()
        for index in range(first, first + count):
            for attempt in range(REJECTED_IN_A_ROW):
                origin = f"{self.seed} {split} {index} {attempt}"
                task = replay(self.environment, origin, variant)
                if self._fits(task, tasks):
                    break
            else:
                raise DataError(
                    f"no new {variant} task after {index - first} of {count} rows of {split}",
                    "ask for fewer rows, more turns, or an environment with more tasks",
                )
            tasks.add(task.canonical_digest)
            if self.taken is not None:
                self.taken.add(task.canonical_layout_digest)
            yield row_of(self.environment, task, split, origin=origin, variant=variant)

    def _fits(self, task: Task, tasks: set[str]) -> bool:
        layout = task.canonical_layout_digest
        if layout in self.quarantined or (self.taken is not None and layout in self.taken):
            return False
        if task.canonical_digest in tasks:
            return False
        return self.max_turns is None or self.environment.optimal_turns(task) <= self.max_turns


def _lines(rows: Sequence[Row]) -> bytes:
    return "".join(json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n" for row in rows).encode()


def _digest_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")
