"""An adapter's name follows from what it computes, not from how PEFT happened to write it."""

import json

import pytest

from training import exports
from training.errors import DataError

OPTIONS = {
    "base_model_name_or_path": "/fsx/base",
    "lora_alpha": 32,
    "r": 16,
    "target_modules": ["q_proj", "o_proj", "v_proj"],
}


def adapter(folder, weights: bytes = b"weights", **changes):
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text(json.dumps(OPTIONS | changes))
    return exports.digest(folder)


def test_what_is_nested_too_deep_is_named_by_its_bytes(tmp_path):
    deep = b"[" * 100_000
    found = adapter(tmp_path / "one", len(deep).to_bytes(8, "little") + deep)
    assert found != adapter(tmp_path / "two")
    (tmp_path / "two" / "adapter_config.json").write_bytes(deep)
    assert exports.digest(tmp_path / "two") != found


def test_the_order_of_a_set_and_the_place_of_the_base_do_not_matter(tmp_path):
    first = adapter(tmp_path / "first")
    again = adapter(
        tmp_path / "again",
        target_modules=["v_proj", "q_proj", "o_proj"],
        base_model_name_or_path="/mnt/elsewhere",
    )
    assert first == again


def test_everything_that_is_computed_does(tmp_path):
    changes = [
        {},
        {"weights": b"other"},
        {"lora_alpha": 16},
        {"target_modules": ["q_proj"]},
        {"use_rslora": True},
        {"alpha_pattern": {"q": 1, "q_proj": 2}},
        {"alpha_pattern": {"q_proj": 2, "q": 1}},
    ]
    digests = [adapter(tmp_path / str(number), **change) for number, change in enumerate(changes)]
    assert len(set(digests)) == len(changes)


def test_options_that_are_none_are_named_by_their_bytes(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder, content in zip(folders, (b"[1]", b"\xff"), strict=True):
        adapter(folder)
        (folder / "adapter_config.json").write_bytes(content)
    assert len({exports.digest(folder) for folder in folders}) == 2


def safetensors(values: bytes, padding: str = "", **header) -> bytes:
    tensor = {"dtype": "U8", "shape": [len(values)], "data_offsets": [0, len(values)]}
    text = (json.dumps({"lora_A": tensor, **header}) + padding).encode()
    return len(text).to_bytes(8, "little") + text + values


def test_bytes_that_compute_nothing_do_not_make_another_adapter(tmp_path):
    same = [safetensors(b"abc"), safetensors(b"abc", " " * 8), safetensors(b"abc", __metadata__={"a": "b"})]
    digests = {adapter(tmp_path / str(number), weights) for number, weights in enumerate(same)}
    assert len(digests) == 1
    assert adapter(tmp_path / "other", safetensors(b"abd")) not in digests


def test_options_and_tensors_that_are_named_twice_are_refused(tmp_path):
    adapter(tmp_path / "one")
    (tmp_path / "one" / "adapter_config.json").write_text('{"r": 16, "r": 32}')
    with pytest.raises(DataError, match=r"in .*adapter_config.json 'r' is there twice"):
        exports.digest(tmp_path / "one")
    header = b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "a": {}}'
    with pytest.raises(DataError, match=r"in .*adapter_model.safetensors 'a' is there twice"):
        adapter(tmp_path / "two", len(header).to_bytes(8, "little") + header + b"x")
