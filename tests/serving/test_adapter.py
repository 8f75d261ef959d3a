import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving import manifest, tensors
from serving.adapter import Adapter, Limits, package, validate
from serving.base import Base
from tests.serving.artifacts import CONFIG, EXPORTED, language_weights, write_export
from training.errors import DataError


def packaged(export: Path, base_dir: Path, out: Path, **options) -> tuple[Adapter, Path]:
    adapter = package(export, out, base_dir=base_dir, run_id="run-1", evaluation_digest="e" * 64, **options)
    return adapter, out / adapter.name


def resigned(directory: Path, name: str, content: bytes) -> Path:
    """The adapter with one file exchanged and a manifest that vouches for it, as a forger would make it."""
    adapter = manifest.parse((directory / "adapter.json").read_bytes(), "x")
    contents = {file: (directory / file).read_bytes() for file in adapter.files} | {name: content}
    fields = {**adapter.to_json(), "files": {file: manifest.sha256(data) for file, data in contents.items()}}
    forged = Adapter(**{**fields, "targets": tuple(fields["targets"])}).named("maze")
    target = directory.parent / forged.name
    manifest.write_folder(target, {**contents, "adapter.json": forged.encode()})
    return target


def test_a_package_is_named_by_content_and_says_what_it_is(export, base_dir, base, tmp_path):
    adapter, directory = packaged(export, base_dir, tmp_path / "out")
    assert sorted(os.listdir(directory)) == [
        "adapter.json",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert adapter.name == f"maze-{adapter.digest[:12]}"
    assert adapter.base_digest == base.digest
    assert (adapter.rank, adapter.alpha) == (4, 8)
    assert adapter.lineage == {
        "run_id": "run-1",
        "evaluation_digest": "e" * 64,
        "licence": "Apache-2.0",
    }
    assert adapter.targets == (
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    )  # fmt: skip
    assert adapter.parameters == sum(tensor.array().size for tensor in language_weights(base).values())
    assert validate(directory, base) == adapter


def test_packaging_again_gives_the_same_bytes(export, base_dir, base, tmp_path):
    _, first = packaged(export, base_dir, tmp_path / "one")
    # PEFT keeps targets in a set: their order changes from process to process.
    config = {**EXPORTED, "target_modules": EXPORTED["target_modules"][::-1]}
    write_export(tmp_path / "again", language_weights(base), config)
    _, second = packaged(tmp_path / "again", base_dir, tmp_path / "two")
    assert first.name == second.name
    for name in manifest.FILES:
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert packaged(export, base_dir, tmp_path / "one")[1] == first


def test_other_weights_options_or_base_have_another_name(export, base_dir, base, tmp_path):
    adapter, _ = packaged(export, base_dir, tmp_path / "out")
    other = write_export(tmp_path / "other", language_weights(base, seed=1))
    hotter = write_export(tmp_path / "hotter", language_weights(base), {**EXPORTED, "lora_alpha": 16})
    names = {packaged(each, base_dir, tmp_path / "out")[0].name for each in (other, hotter)}
    (base_dir / "config.json").write_text(json.dumps({**CONFIG, "extra": 1}))
    names.add(packaged(export, base_dir, tmp_path / "out")[0].name)
    assert len(names | {adapter.name}) == 4


def test_two_runs_that_make_the_same_adapter_make_one(export, base_dir, base, tmp_path):
    first, directory = packaged(export, base_dir, tmp_path / "one")
    lineage = {"run_id": "run-2", "evaluation_digest": "f" * 64, "licence": "MIT"}
    second = package(export, tmp_path / "two", base_dir=base_dir, **lineage)
    assert (second.name, second.digest, second.files) == (first.name, first.digest, first.files)
    assert (second.lineage, second.checksum != first.checksum) == (lineage, True)
    assert package(export, tmp_path / "one", base_dir=base_dir, **lineage) == first
    assert validate(directory, base) == first


def test_bfloat16_weights_stay_bfloat16(base_dir, base, tmp_path):
    weights = {
        name: tensors.Tensor("BF16", tensor.shape, memoryview(bytes(2 * tensor.array().size)))
        for name, tensor in language_weights(base).items()
    }
    _, directory = packaged(write_export(tmp_path / "export", weights), base_dir, tmp_path / "out")
    read = tensors.parse((directory / "adapter_model.safetensors").read_bytes(), "x")
    assert {tensor.dtype for tensor in read.values()} == {"BF16"}


def test_layers_chosen_by_a_pattern_are_spelled_out(base_dir, base, tmp_path):
    pattern = r"model\.language_model\.layers\.1\.self_attn\.[qv]_proj"
    chosen = base.targeted(pattern, None)
    weights = {k: v for k, v in language_weights(base).items() if any(f".{name}." in k for name in chosen)}
    config = {**EXPORTED, "target_modules": pattern, "exclude_modules": None}
    adapter, directory = packaged(write_export(tmp_path / "e", weights, config), base_dir, tmp_path / "out")
    assert adapter.targets == tuple(chosen)
    assert validate(directory, base) == adapter


def test_the_base_digest_follows_weights_and_config(base_dir, base):
    (base_dir / "README.md").write_text("no part of the model")
    assert Base.read(base_dir) == base
    (base_dir / "config.json").write_text(json.dumps({**CONFIG, "extra": 1}))
    assert Base.read(base_dir).digest != base.digest


def nested(part: str, **changes) -> str:
    return json.dumps({**CONFIG, part: {**CONFIG[part], **changes}})


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ("[]", "config.json is not as it was written: .*a list"),
        ("[" * 100_000, "config.json is not as it was written: RecursionError"),
        ("{", "config.json is not as it was written"),
        (
            '{"model_type": "qwen3_vl", "text_config": []}',
            r"json: text_config\.hidden_size is missing",
        ),
        (nested("text_config", hidden_size="8"), r"config.json: text_config\.hidden_size is '8', no int"),
        (nested("text_config", num_attention_heads=0), r"text_config\.num_attention_heads is 0, no size"),
        (nested("text_config", head_dim="6"), r"text_config\.head_dim is '6', no int"),
        (nested("vision_config", depth=None), r"vision_config\.depth is missing"),
        (nested("vision_config", deepstack_visual_indexes=3), "deepstack_visual_indexes is 3, no list"),
    ],
)
def test_a_base_whose_config_is_none_is_refused(config, match, base_dir):
    (base_dir / "config.json").write_text(config)
    with pytest.raises(DataError, match=match):
        Base.read(base_dir)


@pytest.mark.parametrize("name", [manifest.CONFIG, manifest.WEIGHTS])
def test_a_folder_in_place_of_a_file_is_refused(name, export, base_dir, tmp_path):
    (export / name).unlink()
    (export / name).mkdir()
    with pytest.raises(DataError, match=f"{name} cannot be read"):
        packaged(export, base_dir, tmp_path / "out")


def change(weights: dict[str, tensors.Tensor], kind: str) -> dict[str, tensors.Tensor]:
    name = "base_model.model.model.language_model.layers.1.mlp.up_proj.lora_B.weight"
    values = weights[name].array().copy()
    match kind:
        case "nan":
            values[3, 1] = np.nan
            return {**weights, name: tensors.from_array(values)}
        case "transposed":
            return {**weights, name: tensors.from_array(values.T)}
        case "missing":
            return {key: value for key, value in weights.items() if key != name}
        case "extra layer":
            return {**weights, name.replace("layers.1", "layers.2"): weights[name]}
        case "other names":
            return {key.replace("language_model.", ""): value for key, value in weights.items()}
        case "vision":
            vision = "base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight"
            return {**weights, vision: tensors.from_array(np.ones((4, 4)))}
    raise AssertionError(kind)


WEIGHT_FAULTS = [
    ("nan", "up_proj.lora_B.weight holds infinite or NaN"),
    ("transposed", r"shape \(4, 12\), expected \(12, 4\)"),
    ("missing", "1 expected tensors are missing"),
    ("extra layer", "1 are not expected"),
    ("other names", "28 expected tensors are missing.*28 are not expected"),
    ("vision", "1 are not expected .*visual"),
]


@pytest.mark.parametrize(("kind", "reason"), WEIGHT_FAULTS)
def test_wrong_weights_are_refused_before_packaging_and_after(kind, reason, export, base_dir, base, tmp_path):
    weights = change(language_weights(base), kind)
    with pytest.raises(DataError, match=reason):
        packaged(write_export(tmp_path / "bad", weights), base_dir, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    _, directory = packaged(export, base_dir, tmp_path / "out")
    with pytest.raises(DataError, match=reason):
        validate(resigned(directory, manifest.WEIGHTS, tensors.serialize(weights)), base)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"r": 8}, r"has shape \(4, 12\), expected \(8, 12\) at rank 8"),
        ({"r": "4"}, "r is '4'"),
        ({"r": True}, "r is True"),
        ({"lora_alpha": 0}, "lora_alpha is 0"),
        ({"lora_alpha": 10**400}, "lora_alpha is 1000"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"use_dora": True}, "use_dora is True"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"auto_mapping": {"parent_library": "os"}}, "auto_mapping"),
        ({"an_option_of_tomorrow": 1}, "an_option_of_tomorrow"),
        ({"target_modules": ["c_attn"]}, "match no linear layer"),
        ({"target_modules": ["q_proj", "lm_head"], "exclude_modules": None}, "output head"),
        ({"target_modules": []}, "target_modules is"),
        ({"target_modules": "(", "exclude_modules": None}, "not a regular expression"),
        ({"target_modules": "a" * 301}, "target_modules is"),
        ({"exclude_modules": None}, "vision layers carry LoRA"),
    ],
)
def test_wrong_options_are_refused(options, reason, base_dir, base, tmp_path):
    export = write_export(tmp_path / "export", language_weights(base), {**EXPORTED, **options})
    with pytest.raises(DataError, match=reason):
        packaged(export, base_dir, tmp_path / "out")


def test_vision_layers_pass_where_the_server_supports_them(base_dir, base, tmp_path):
    names = base.targeted("all-linear", None)
    weights = {}
    for module in names:
        inputs, outputs = base.linears[module]
        weights[f"base_model.model.{module}.lora_A.weight"] = tensors.from_array(np.ones((4, inputs)))
        weights[f"base_model.model.{module}.lora_B.weight"] = tensors.from_array(np.ones((outputs, 4)))
    export = write_export(tmp_path / "export", weights, {**EXPORTED, "exclude_modules": None})
    with_tower = Limits(allow_vision=True)
    adapter, directory = packaged(export, base_dir, tmp_path / "out", limits=with_tower)
    assert adapter.targets == tuple(names)
    with pytest.raises(DataError, match="vision layers carry LoRA"):
        validate(directory, base)


def test_the_servers_limits_hold(export, base_dir, base, tmp_path):
    _, directory = packaged(export, base_dir, tmp_path / "out")
    with pytest.raises(DataError, match="rank 4 exceeds the server's maximum of 2"):
        validate(directory, base, Limits(max_rank=2))
    with pytest.raises(DataError, match="more than the 100 allowed"):
        validate(directory, base, Limits(max_bytes=100))


def test_another_base_is_refused(export, base_dir, base, tmp_path):
    _, directory = packaged(export, base_dir, tmp_path / "out")
    with pytest.raises(DataError, match="was trained on base"):
        validate(directory, Base("0" * 64, base.linears))


def test_a_pattern_in_a_package_is_never_run(export, base_dir, base, tmp_path):
    _, directory = packaged(export, base_dir, tmp_path / "out")
    hostile = json.loads((directory / "adapter_config.json").read_text()) | {"target_modules": "(a+)+b"}
    with pytest.raises(DataError, match="as a pattern"):
        validate(resigned(directory, manifest.CONFIG, json.dumps(hostile).encode()), base)


def test_a_manifest_that_miscounts_is_refused(export, base_dir, base, tmp_path):
    adapter, directory = packaged(export, base_dir, tmp_path / "out")
    contents = {file: (directory / file).read_bytes() for file in adapter.files}
    forged = replace(adapter, parameters=adapter.parameters + 1).named("maze")
    manifest.write_folder(tmp_path / forged.name, {**contents, "adapter.json": forged.encode()})
    with pytest.raises(DataError, match="tells of"):
        validate(tmp_path / forged.name, base)


@pytest.mark.parametrize("name", [manifest.CONFIG, manifest.MANIFEST])
def test_what_is_named_twice_is_refused(name, export, base_dir, base, tmp_path):
    _, directory = packaged(export, base_dir, tmp_path / "out")
    content = (
        (directory / name).read_bytes().replace(b"{", b'{"r": 4, "r": 4, "format": "", "format": "",', 1)
    )
    forged = resigned(directory, name, content) if name == manifest.CONFIG else directory
    (forged / name).write_bytes(content)
    with pytest.raises(DataError, match="is there twice"):
        validate(forged, base)


def tamper(directory: Path, kind: str) -> None:
    weights = directory / "adapter_model.safetensors"
    match kind:
        case "symbolic link":
            weights.rename(directory.parent / "w")
            weights.symlink_to(directory.parent / "w")
        case "hard link":
            os.link(weights, directory.parent / "w")
        case "pipe":
            weights.unlink()
            os.mkfifo(weights)
        case "extra file":
            (directory / "adapter_model.bin").write_bytes(b"pickle")
        case "missing file":
            weights.unlink()
        case "edited weights":
            weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
        case "edited manifest":
            path = directory / "adapter.json"
            path.write_text(path.read_text().replace("run-1", "run-9"))
        case "path in manifest":
            path = directory / "adapter.json"
            path.write_text(path.read_text().replace('"adapter_config.json"', '"../adapter_config.json"'))
        case "no manifest":
            (directory / "adapter.json").write_text("[]")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("symbolic link", "links are not followed"),
        ("hard link", "not a plain file"),
        ("pipe", "not a plain file"),
        ("extra file", "adapter_model.bin"),
        ("missing file", "holds adapter.json, adapter_config.json"),
        ("edited weights", "has digest"),
        ("edited manifest", "does not follow from the content"),
        ("path in manifest", "lists the files"),
        ("no manifest", "not a manifest"),
    ],
)
def test_tampering_is_refused(kind, reason, export, base_dir, base, tmp_path):
    _, directory = packaged(export, base_dir, tmp_path / "out")
    tamper(directory, kind)
    with pytest.raises(DataError, match=reason):
        validate(directory, base)


def test_a_folder_must_bear_the_adapters_name(export, base_dir, base, tmp_path):
    adapter, directory = packaged(export, base_dir, tmp_path / "out")
    directory.rename(tmp_path / "latest")
    with pytest.raises(DataError, match=f"holds the adapter {adapter.name}"):
        validate(tmp_path / "latest", base)
    (tmp_path / adapter.name).symlink_to(tmp_path / "latest")
    with pytest.raises(DataError, match="is not a folder"):
        validate(tmp_path / adapter.name, base)


def test_no_mutation_of_a_package_passes_or_crashes(export, base_dir, base, tmp_path):
    _, directory = packaged(export, base_dir, tmp_path / "out")
    draw = random.Random(11)
    original = {name: (directory / name).read_bytes() for name in manifest.FILES}
    for _ in range(400):
        name = draw.choice(manifest.FILES)
        content = bytearray(original[name])
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        (directory / name).write_bytes(content)
        with pytest.raises(DataError):
            validate(directory, base)
        (directory / name).write_bytes(original[name])


def test_no_mutation_behind_a_forged_manifest_crashes(export, base_dir, base, tmp_path):
    adapter, directory = packaged(export, base_dir, tmp_path / "out")
    draw = random.Random(13)
    for _ in range(300):
        name = draw.choice([manifest.WEIGHTS, manifest.CONFIG])
        content = bytearray((directory / name).read_bytes())
        content[draw.randrange(min(len(content), 900))] = draw.randrange(256)
        forged = (
            resigned(directory, name, bytes(content)) if content != (directory / name).read_bytes() else None
        )
        if forged is None:
            continue
        try:
            assert validate(forged, base).base_digest == adapter.base_digest
        except DataError:
            continue
        finally:
            shutil.rmtree(forged)


VALUES = (None, True, -1, 0, 4, 10**30, 1e400, "", "4", "../x", "a" * 400, [], [4], ["q_proj"], {}, {"a": 1})


def test_nothing_that_passes_breaks_the_rules_whatever_is_forged(export, base_dir, base, tmp_path):
    """Options and tensor headers get values of every kind; what passes is checked by other means."""
    _, directory = packaged(export, base_dir, tmp_path / "out")
    draw, passed = random.Random(17), 0
    options = json.loads((directory / manifest.CONFIG).read_text())
    weights = (directory / manifest.WEIGHTS).read_bytes()
    length = int.from_bytes(weights[:8], "little")
    header, body = json.loads(weights[8 : 8 + length]), weights[8 + length :]
    for _ in range(300):
        if draw.random() < 0.5:
            changed = {**options, draw.choice([*options, "new_option"]): draw.choice(VALUES)}
            forged = resigned(directory, manifest.CONFIG, json.dumps(changed).encode())
        else:
            tensor = draw.choice([*header])
            entry = {**header[tensor], draw.choice(["dtype", "shape", "data_offsets"]): draw.choice(VALUES)}
            text = json.dumps({**header, draw.choice([tensor, "another"]): entry}).encode()
            content = len(text).to_bytes(8, "little") + text + body
            forged = resigned(directory, manifest.WEIGHTS, content)
        try:
            validate(forged, base)
        except DataError:
            continue
        else:
            passed += 1
            said = json.loads((forged / manifest.CONFIG).read_text())
            neutral = ("bias", "lora_alpha", "peft_type", "r", "target_modules", "task_type")
            assert {key: said[key] for key in neutral} == {key: options[key] for key in neutral}
            assert (forged / manifest.WEIGHTS).read_bytes() == weights
        finally:
            if forged != directory:
                shutil.rmtree(forged)
    assert passed > 20
