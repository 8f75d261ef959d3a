import json
import random
import struct

import numpy as np
import pytest

from serving import tensors
from training.errors import DataError


def file_of(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_values_survive_and_bytes_do_not_depend_on_order_or_metadata():
    values = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.float32([0.5, -1])}
    content = tensors.serialize({name: tensors.from_array(array) for name, array in values.items()})
    read = tensors.parse(content, "x")
    assert {name: tensor.array().tolist() for name, tensor in read.items()} == {
        name: array.tolist() for name, array in values.items()
    }
    noisy = file_of(
        {
            "__metadata__": {"format": "pt"},
            "b": entry(shape=[2, 3], offsets=[0, 24]),
            "a": entry(offsets=[24, 32]),
        },
        values["b"].tobytes() + values["a"].tobytes(),
    )
    assert tensors.serialize(tensors.parse(noisy, "x")) == content


def test_bfloat16_and_float16_are_read_as_numbers():
    body = np.array([0x3F80, 0xC000], "<u2").tobytes() + np.array([0.25, -4], "<f2").tobytes()
    header = {"brain": entry("BF16", [2], [0, 4]), "half": entry("F16", [2], [4, 8])}
    read = tensors.parse(file_of(header, body), "x")
    assert read["brain"].array().tolist() == [1, -2]
    assert read["half"].array().tolist() == [0.25, -4]
    assert all(tensor.finite() for tensor in read.values())


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("F32", 0x7FC00000),
        ("F32", 0xFF800000),
        ("BF16", 0x7FC0),
        ("BF16", 0xFF80),
        ("F16", 0x7E00),
        ("F16", 0xFC00),
    ],
)
def test_nan_and_infinity_are_seen_in_every_type(dtype: str, bits: int):
    width = 4 if dtype == "F32" else 2
    body = bits.to_bytes(width, "little")
    tensor = tensors.parse(file_of({"w": entry(dtype, [1], [0, width])}, body), "x")["w"]
    assert not tensor.finite()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"PK\x03\x04", "too few"),
        (b"\x80\x02}q\x00." + b"x" * 100, "not a safetensors file"),
        (file_of(b"[1]"), "not an object"),
        (file_of(b"{"), "cannot be read"),
        (file_of(b'{"w":{},"w":{}}'), "occurs twice"),
        (file_of(b"[" * 100_000), "cannot be read"),
        (file_of({"w": [1]}), "malformed"),
        (file_of({"w": entry("I64", [1])}, b"x" * 8), "has type 'I64'"),
        (file_of({"w": entry(["F32"])}, b"x" * 8), "has type"),
        (file_of({"w": entry(shape=[-2])}, b"x" * 8), "has shape"),
        (file_of({"w": entry(shape=[True, 2])}, b"x" * 8), "has shape"),
        (file_of({"w": entry(offsets=[8, 0])}, b"x" * 8), "offsets"),
        (file_of({"w": entry(shape=[3])}, b"x" * 8), "does not fill"),
        (file_of({"w": entry(shape=[2**40, 2**40])}, b"x" * 8), "does not fill"),
        (file_of({"w": entry()}, b"x" * 7), "ends at byte 8"),
        (file_of({"w": entry()}, b"x" * 9), "1 bytes follow"),
        (file_of({"v": entry(), "w": entry()}, b"x" * 8), "starts at byte 0, expected 8"),
    ],
)
def test_what_is_not_a_safetensors_file_is_refused_with_its_reason(content: bytes, reason: str):
    with pytest.raises(DataError, match=reason):
        tensors.parse(content, "adapter")


def test_no_mutation_of_a_file_escapes_the_error_family():
    draw = random.Random(7)
    good = tensors.serialize({"a": tensors.from_array(np.ones((3, 2))), "b": tensors.from_array(np.ones(4))})
    for _ in range(3000):
        content = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        content = content[: draw.choice([len(content), draw.randrange(len(content))])]
        try:
            for tensor in tensors.parse(bytes(content), "x").values():
                tensor.finite()
        except DataError:
            continue
