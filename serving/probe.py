"""Shows that a served adapter changes the model's outputs, and that they are those of the trainer.

A server can load an adapter with status 200 and ignore it, apply it wrongly, or serve the one before. Only
its log-probabilities tell.
"""

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from serving.client import ChatPolicy, Completion
from training.errors import DataError
from training.evaluate import Conversation
from training.files import read_json

# Engines repeat a computation to about 1e-5 in fp32; a trained adapter shifts log-probabilities by far more.
LEAST_SHIFT = 1e-3
FP32_TOLERANCE = 1e-4
TOLERANCES = {"float32": FP32_TOLERANCE, "bfloat16": 0.1}
"""By the type in which both engines compute."""
_TOP = 5


@dataclass(frozen=True)
class Reference:
    """What the trainer says of one canary: greedy answer's token ids and their log-probabilities in nats."""

    key: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Probe:
    """What was found. `shift` is the largest |log p(adapter) - log p(base)|, in nats, of any likely token;
    `gap` the largest difference from the trainer, None when there was no reference.
    """

    base: str
    adapter: str
    canaries: int
    shift: float
    gap: float | None
    tolerance: float
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the adapter may take traffic."""
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values, for the run's record."""
        return asdict(self) | {"passed": self.passed}

    def require(self) -> None:
        """Raises DataError that names every failure."""
        if self.failures:
            raise DataError(
                f"{self.adapter} failed its probe: {'; '.join(self.failures)}",
                "keep the adapter that is live; check names, rank and base of this one",
            )


def run(
    base: ChatPolicy,
    adapter: ChatPolicy,
    canaries: Sequence[Conversation],
    references: Sequence[Reference] = (),
    tolerance: float = FP32_TOLERANCE,
) -> Probe:
    """Ask base and adapter the same greedy questions and compare.

    `references` are matched to canaries by key; `tolerance` is one of TOLERANCES.
    Raises DataError when there is nothing to ask or a reference names no canary.
    """
    if not canaries:
        raise DataError("a probe needs canaries", "give it the first pictures of a few mazes")
    known = [canary.key for canary in canaries]
    if strangers := [reference.key for reference in references if reference.key not in known]:
        raise DataError(f"references name {strangers[0]!r}, which is no canary", "write them again")
    # One after the other: the CPU build of vLLM computes base requests wrongly when a batch holds both.
    of_base = base.complete(canaries, top=_TOP)
    of_adapter = adapter.complete(canaries, top=_TOP)
    failures = []
    shift = max(_shift(one, other) for one, other in zip(of_base, of_adapter, strict=True))
    if shift < LEAST_SHIFT:
        failures.append(f"it answers like the base (largest shift {shift:.1e} nats)")
    answers = dict(zip(known, of_adapter, strict=True))
    gap, differing = compare(answers, references, tolerance)
    failures += differing
    return Probe(base.model, adapter.model, len(canaries), shift, gap, tolerance, tuple(failures))


def compare(
    answers: Mapping[str, Completion], references: Sequence[Reference], tolerance: float
) -> tuple[float | None, list[str]]:
    """The largest difference from the trainer's log-probabilities, None without references, and what is
    wrong: other tokens, or a difference above `tolerance`. `answers` are by canary."""
    failures, gaps = [], []
    for reference in references:
        completion = answers[reference.key]
        if completion.token_ids != reference.token_ids:
            failures.append(
                f"canary {reference.key}: tokens {list(completion.token_ids)}, "
                f"the trainer has {list(reference.token_ids)}"
            )
            continue
        pairs = zip(completion.logprobs, reference.logprobs, strict=True)
        gaps.extend(abs(served - trained) for served, trained in pairs)
    gap = max(gaps, default=None)
    if not all(difference <= tolerance for difference in gaps):
        failures.append(f"log-probabilities differ from the trainer's by {gap:.1e} nats, above {tolerance:g}")
    return gap, failures


def read_references(path: Path) -> list[Reference]:
    """References from a JSON list of {"key", "token_ids", "logprobs"}; DataError if it is not that."""
    try:
        references = [
            Reference(entry["key"], tuple(entry["token_ids"]), tuple(entry["logprobs"]))
            for entry in read_json(path)
        ]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"{path} holds no reference log-probabilities ({error})", "write it again") from error
    if odd := [one for one in references if not _is_sound(one)]:
        raise DataError(
            f"{path} has a reference without a key, or without one log-probability for each token: "
            f"{reprlib.repr(odd[0].key)}",
            "write it again",
        )
    return references


def _is_sound(reference: Reference) -> bool:
    ids, logprobs = reference.token_ids, reference.logprobs
    return (
        isinstance(reference.key, str)
        and 0 < len(ids) == len(logprobs)
        and all(type(one) is int for one in ids)
        and all(type(one) in (int, float) and -math.inf < one < math.inf for one in logprobs)
    )


def _shift(base: Completion, adapter: Completion) -> float:
    """Largest difference at the places where both saw the same context: up to their first unlike token."""
    largest = 0.0
    for place, (one, other) in enumerate(zip(base.top, adapter.top, strict=False)):
        largest = max(largest, _difference(one, other), _difference(other, one))
        if base.token_ids[place] != adapter.token_ids[place]:
            break
    return largest


def _difference(one: dict[int, float], other: dict[int, float]) -> float:
    """Largest difference over the tokens of `one`; a token that `other` does not list lies below its list."""
    least = min(other.values())
    return max(abs(value - other[token]) if token in other else value - least for token, value in one.items())
