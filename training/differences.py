"""Whether two runs are the same run: step by step, what they drew, played, earned and learned.

On one kind of CPU with fixed thread counts an interrupted run equals an uninterrupted one to the bit. Where
that cannot be promised (GPU), the sizes of the differences say how far apart two runs are.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from training import exports, lineage, trace
from training.errors import DataError, visible
from training.trace import Row

KINDS = ("rows", "tokens", "logprobs", "rewards", "adapter")
"""In the order in which one follows from the other within a step."""
_WORDS = {
    "rows": "drew other tasks",
    "tokens": "sampled other tokens",
    "logprobs": "gave sampled tokens another probability",
    "rewards": "earned another reward",
    "adapter": "learned another adapter",
}


@dataclass(frozen=True)
class First:
    """The first thing that differs. `episode` is its place in the step; None for the adapter of a step."""

    step: int
    kind: str
    episode: int | None
    row: str | None
    a: Any
    b: Any

    def words(self) -> str:
        """One line for a person."""
        where = "" if self.episode is None else f" in episode {self.episode} (task {self.row})"
        return f"step {self.step}: b {_WORDS[self.kind]}{where}: {self.a} and {self.b}"


@dataclass(frozen=True)
class Comparison:
    """`sizes` are over the steps that both have; of the adapters only where both runs have finished ones.

    {"episodes": n, "rows" | "tokens": episodes that differ, "logprobs" | "rewards": largest difference,
    "adapter": largest difference of a weight}
    """

    steps: int
    missing: list[int]
    first: First | None
    adapters: tuple[str | None, str | None]
    sizes: dict[str, float] = field(default_factory=dict)

    @property
    def identical(self) -> bool:
        """Every step of both is there and equal, and so is the adapter that came of it."""
        return self.first is None and not self.missing and self.adapters[0] == self.adapters[1]

    def words(self) -> str:
        """One line for a person."""
        if self.first:
            return self.first.words()
        if self.missing:
            return f"only one of them has step {self.missing[0]}"
        if not self.identical:
            return f"the adapters differ: {self.adapters[0]} and {self.adapters[1]}"
        adapter = ", and in the adapter" if self.adapters[0] else "; neither has an adapter yet"
        return f"identical in all {self.steps} steps{adapter}"

    def to_json(self) -> dict[str, Any]:
        """Numbers that JSON has no word for are "nan" and "inf"."""
        return _told({"identical": self.identical, "words": self.words(), **asdict(self)})


def compare(a: Path, b: Path) -> Comparison:
    """Two run folders. Raises DataError where one is no run, has not taken a step, or is damaged."""
    rows_a, rows_b = ({row["step"]: row for row in _trace(run)} for run in (a, b))
    both = sorted(rows_a.keys() & rows_b.keys())
    firsts = (first for step in both for first in _differences(rows_a[step], rows_b[step]))
    sizes = _sizes([(rows_a[step], rows_b[step]) for step in both])
    folders = [_adapter(run) for run in (a, b)]
    adapters = tuple(exports.digest(folder) if folder else None for folder in folders)
    if all(folders):
        sizes["adapter"] = _largest_difference(*(folder / exports.WEIGHTS for folder in folders))
    return Comparison(
        steps=len(both),
        missing=sorted(rows_a.keys() ^ rows_b.keys()),
        first=next(firsts, None),
        adapters=adapters,
        sizes=sizes,
    )


def _trace(run_dir: Path) -> list[Row]:
    lineage.read(run_dir)
    rows = trace.read(run_dir / trace.FILE)
    if not rows:
        raise DataError(f"{run_dir} has taken no step yet: no {trace.FILE}", "compare runs that have trained")
    for row in rows:
        if not _is_whole(row):
            raise DataError(
                f"step {visible(str(row['step']))} in {run_dir / trace.FILE} is not as a run writes it",
                "restore the file",
            )
    return rows


def _is_whole(row: Row) -> bool:
    episodes = [row.get(kind) for kind in KINDS[:-1]]
    if not isinstance(row["step"], int) or not all(isinstance(values, list) for values in episodes):
        return False
    numbers = (value for kind in ("logprobs", "rewards") for value in row[kind])
    return len({len(values) for values in episodes}) == 1 and all(isinstance(n, int | float) for n in numbers)


def _adapter(run_dir: Path) -> Path | None:
    noted = lineage.read(run_dir).get("adapter")
    return run_dir / noted["folder"] if noted else None


def _differences(a: Row, b: Row) -> Iterator[First]:
    for kind in KINDS:
        one, other = a.get(kind), b.get(kind)
        if one == other:
            continue
        if kind == "adapter":
            if one and other:  # a step without a checkpoint does not name its adapter
                yield First(a["step"], kind, None, None, one, other)
            continue
        for episode in range(max(len(one), len(other))):
            values = [values[episode] if episode < len(values) else None for values in (one, other)]
            if values[0] != values[1]:
                row = a["rows"][episode] if episode < len(a["rows"]) else None
                yield First(a["step"], kind, episode, row, *values)
                break


def _sizes(pairs: Sequence[tuple[Row, Row]]) -> dict[str, float]:
    sizes: dict[str, float] = {"episodes": 0, "rows": 0, "tokens": 0, "logprobs": 0.0, "rewards": 0.0}
    for a, b in pairs:
        sizes["episodes"] += len(a["rows"])
        for kind in ("rows", "tokens"):
            sizes[kind] += sum(one != other for one, other in zip(a[kind], b[kind], strict=False))
        for kind in ("logprobs", "rewards"):
            found = [abs(one - other) for one, other in zip(a[kind], b[kind], strict=False)]
            sizes[kind] = _largest([sizes[kind], *found])
    return sizes


def _largest_difference(a: Path, b: Path) -> float:
    """Of two adapters; infinite where the tensors are others."""
    one, other = _tensors(a), _tensors(b)
    if one.keys() != other.keys() or any(one[name].shape != other[name].shape for name in one):
        return float("inf")
    return _largest([_largest(np.abs(one[name] - other[name])) for name in one])


def _largest(values: Any) -> float:
    """NaN where one is, whatever its place: unlike max."""
    return float(np.max(values, initial=0.0))


def _told(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _told(each) for key, each in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _tensors(path: Path) -> dict[str, np.ndarray]:
    try:
        return {
            name: _FLOATS[dtype](values).reshape(shape)
            for name, dtype, shape, values in exports.tensors(path.read_bytes())
        }
    except exports.NO_TENSORS as error:
        raise DataError(
            f"{path} holds no weights that can be compared: {visible(repr(error))}", "restore the adapter"
        ) from None


_FLOATS: dict[str, Callable[[bytes], np.ndarray]] = {
    "F32": lambda values: np.frombuffer(values, dtype="<f4"),
    "F16": lambda values: np.frombuffer(values, dtype="<f2").astype("<f4"),
    "BF16": lambda values: (np.frombuffer(values, dtype="<u2").astype("<u4") << 16).view("<f4"),
}
"""From the bytes of a type in safetensors' words to float32, which holds all of them."""
