"""The safetensors container, read and written with numpy alone.

Adapters come from outside, so the reader is strict: it accepts only what the format allows (no holes, no
overlaps, nothing after the last tensor) and only the float types that a LoRA adapter can have. The writer
is canonical: equal tensors give equal bytes, whatever wrote them first.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from training.errors import DataError

MAX_HEADER_BYTES = 16 * 2**20
_ALIGNMENT = 8
# For every accepted type: bytes per value, numpy type of the raw bits, mask of the exponent bits.
# A value is infinite or NaN exactly when all its exponent bits are set; bfloat16 has no numpy type, so
# finiteness is read from the bits for all three.
_DTYPES = {
    "F32": (4, np.dtype("<u4"), 0x7F800000),
    "F16": (2, np.dtype("<u2"), 0x7C00),
    "BF16": (2, np.dtype("<u2"), 0x7F80),
}


@dataclass(frozen=True)
class Tensor:
    """One named tensor: its type as safetensors spells it, its shape and its little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def finite(self) -> bool:
        """Whether no value is infinite or NaN."""
        _, raw, exponent = _DTYPES[self.dtype]
        bits = np.frombuffer(self.data, dtype=raw)
        return not bool(np.any((bits & raw.type(exponent)) == exponent))

    def array(self) -> np.ndarray:
        """The values as float32, shape `self.shape`."""
        if self.dtype == "BF16":
            wide = np.frombuffer(self.data, dtype="<u2").astype("<u4") << 16
            return wide.view("<f4").reshape(self.shape)
        source = {"F32": "<f4", "F16": "<f2"}[self.dtype]
        return np.frombuffer(self.data, dtype=source).astype(np.float32).reshape(self.shape)


def from_array(values: np.ndarray) -> Tensor:
    """A float32 tensor holding `values`."""
    little_endian = np.ascontiguousarray(values, dtype="<f4")
    return Tensor("F32", little_endian.shape, memoryview(little_endian.tobytes()))


def parse(content: bytes, source: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, without copying them.

    `source` names the file in errors. Raises DataError for anything that is not a well-formed file of
    float tensors.
    """
    header, body = _split(content, source)
    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, begin, end = _entry(name, entry, source)
        if end > len(body):
            raise DataError(
                f"{source}: tensor {name} ends at byte {end} of {len(body)}",
                "the file is cut off; copy or export it again",
            )
        spans.append((begin, end, name))
        tensors[name] = Tensor(dtype, shape, body[begin:end])
    position = 0
    for begin, end, name in sorted(spans):
        if begin != position:
            raise DataError(f"{source}: tensor {name} starts at byte {begin}, expected {position}")
        position = end
    if position != len(body):
        raise DataError(f"{source}: {len(body) - position} bytes follow the last tensor")
    return tensors


def serialize(tensors: Mapping[str, Tensor]) -> bytes:
    """Canonical bytes: names sorted, no metadata, header padded with spaces to a multiple of 8."""
    header: dict[str, object] = {}
    position = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        end = position + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return (
        struct.pack("<Q", len(text)) + text + b"".join(bytes(tensors[name].data) for name in sorted(tensors))
    )


def _split(content: bytes, source: str) -> tuple[dict[str, object], memoryview]:
    if len(content) < 8:
        raise DataError(f"{source}: {len(content)} bytes are too few for a safetensors file")
    (length,) = struct.unpack_from("<Q", content)
    if length > min(MAX_HEADER_BYTES, len(content) - 8):
        raise DataError(
            f"{source}: not a safetensors file (a header of {length} bytes is announced)",
            "export the adapter as adapter_model.safetensors; pickled .bin files are never loaded",
        )
    try:
        header = json.loads(content[8 : 8 + length], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source}: the safetensors header cannot be read ({error})") from error
    if not isinstance(header, dict):
        raise DataError(f"{source}: the safetensors header is not an object")
    return header, memoryview(content)[8 + length :]


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def _entry(name: str, entry: object, source: str) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise DataError(f"{source}: the header entry of {name} is malformed")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise DataError(f"{source}: tensor {name} has type {dtype!r}", f"use one of {', '.join(_DTYPES)}")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise DataError(f"{source}: tensor {name} has shape {shape!r} and offsets {offsets!r}")
    if math.prod(shape) * _DTYPES[dtype][0] != offsets[1] - offsets[0]:
        raise DataError(f"{source}: tensor {name} of shape {shape} and type {dtype} does not fill {offsets}")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _naturals(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
