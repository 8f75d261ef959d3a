"""Kubernetes quantities ("500m", "1Gi") as numbers."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

_SUFFIXES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
}


def parse(quantity: str | int | float) -> Decimal:
    """The number behind a quantity. Raises ValueError."""
    match = re.match(r"^\s*([+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)([a-zA-Z]*)\s*$", str(quantity))
    if not match or match[2] not in _SUFFIXES:
        raise ValueError(f"{quantity!r} is not a Kubernetes quantity")
    return Decimal(match[1]) * _SUFFIXES[match[2]]


def limit(container: dict[str, Any], resource: str) -> int | None:
    """A container's limit, else its request, rounded up; None where it states neither."""
    resources = container.get("resources") or {}
    for group in ("limits", "requests"):
        if resource in (resources.get(group) or {}):
            return math.ceil(parse(resources[group][resource]))
    return None
