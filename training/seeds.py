"""Random seeds by name: every draw of a run has its own, whatever the order in which things happen."""

import hashlib
import json

BITS = 63
"""Fits every integer type on the way to an engine (JSON, int64, torch's generators)."""


def derive(*parts: int | str) -> int:
    """A seed of BITS bits from what names the draw, for example (run seed, step, row, sample, turn).

    Equal parts give equal seeds on every machine; 1 and "1" are different parts.
    """
    name = json.dumps(parts, separators=(",", ":")).encode()
    return int.from_bytes(hashlib.blake2s(name, digest_size=8).digest()) >> (64 - BITS)
