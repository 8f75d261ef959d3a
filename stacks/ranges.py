"""Validators of settings that say what they permit."""

from collections.abc import Sequence

from pydantic import AfterValidator


def between(low: int, high: int) -> AfterValidator:
    """A range whose error names both ends."""

    def check(value: int) -> int:
        if not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}")
        return value

    return AfterValidator(check)


def distinct[T](values: Sequence[T]) -> Sequence[T]:
    """A list in which AWS refuses to find anything twice."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} is named twice; name each once")
    return values
