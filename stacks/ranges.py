"""Validators of settings that say what they permit."""

import re
from collections.abc import Sequence
from ipaddress import IPv4Network

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


def block(text: str) -> IPv4Network:
    """An address block as people write it; without a prefix it is that one address."""
    try:
        if not re.fullmatch(r"[\d.]+(/\d+)?", text):
            raise ValueError("digits and dots, then a slash and the prefix")
        return IPv4Network(text)
    except ValueError as error:
        raise ValueError(f"is no IPv4 block like 203.0.113.0/24: {text!r} ({error})") from None


def in_order(what: str, low: int, high: int) -> None:
    """Raises ValueError where `max_<what>` is below `min_<what>`."""
    if high < low:
        raise ValueError(f"max_{what} = {high} is below min_{what} = {low}; raise it")
