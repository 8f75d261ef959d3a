"""Two runs are told apart by the first thing in which they differ, and by how much."""

import json
import math
import shutil
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from cdk_app.compare import compare as command
from training import differences, exports, trace
from training.errors import DataError


def write_run(folder: Path, steps: int = 3, weight: float = 0.25, dtype: str = "F32") -> Path:
    adapter = folder / "adapter"
    adapter.mkdir(parents=True)
    values = struct.pack("<ee" if dtype == "F16" else "<ff", 1.0, weight)
    if dtype == "BF16":  # the upper half of a float32
        values = values[2:4] + values[6:8]
    tensor = {"dtype": dtype, "shape": [2, 1], "data_offsets": [0, len(values)]}
    header = json.dumps({"w": tensor}).encode()
    content = struct.pack("<Q", len(header)) + header + values
    (adapter / exports.WEIGHTS).write_bytes(content)
    (adapter / exports.CONFIG).write_text('{"r": 1}')
    (folder / "run.json").write_text(
        json.dumps({"adapter": {"folder": "adapter", "digest": exports.digest(adapter)}})
    )
    for step in range(1, steps + 1):
        row = trace.of_step(
            step, rows=["4", "7"], tokens=[[1, 2], [3]], logprobs=[[-1.0], [-2.0]], rewards=[0.0, 1.0]
        )
        trace.append(folder / trace.FILE, {**row, "adapter": f"digest-{step}"})
    return folder


@pytest.fixture
def two(tmp_path) -> tuple[Path, Path]:
    a = write_run(tmp_path / "a")
    shutil.copytree(a, tmp_path / "b")
    return a, tmp_path / "b"


def change(run: Path, step: int, kind: str, value) -> None:
    rows = trace.read(run / trace.FILE)
    trace.append(run / trace.FILE, {**rows[step - 1], kind: value})


def test_equal_runs_are_identical(two):
    found = differences.compare(*two)
    assert found.identical
    assert found.steps == 3
    assert found.sizes == {"episodes": 6, "rows": 0, "tokens": 0, "logprobs": 0, "rewards": 0, "adapter": 0}


@pytest.mark.parametrize(
    ("kind", "value", "episode", "row"),
    [
        ("rows", ["4", "9"], 1, "7"),
        (
            "tokens",
            ["x", trace.of_step(1, rows=[], tokens=[[3]], logprobs=[], rewards=[])["tokens"][0]],
            0,
            "4",
        ),
        ("logprobs", [-1.0, -2.0000001], 1, "7"),
        ("rewards", [0.5, 1.0], 0, "4"),
        ("adapter", "another", None, None),
    ],
)
def test_the_first_difference_is_named(two, kind, value, episode, row):
    change(two[1], 2, kind, value)
    change(two[1], 3, "rewards", [9.0, 9.0])
    found = differences.compare(*two)
    assert not found.identical
    assert (found.first.step, found.first.kind, found.first.episode, found.first.row) == (
        2,
        kind,
        episode,
        row,
    )
    assert found.first.words() in found.words()


def test_within_a_step_the_cause_comes_before_what_follows_from_it(two):
    change(two[1], 2, "adapter", "another")
    change(two[1], 2, "tokens", ["x", "y"])
    assert differences.compare(*two).first.kind == "tokens"


def test_sizes_are_told(two):
    change(two[1], 2, "logprobs", [-1.0, -2.5])
    change(two[1], 3, "rewards", [0.25, 1.0])
    sizes = differences.compare(*two).sizes
    assert (sizes["logprobs"], sizes["rewards"]) == (0.5, 0.25)


def test_weights_are_compared_when_both_have_finished(tmp_path):
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", weight=0.75)
    found = differences.compare(a, b)
    assert not found.identical
    assert found.sizes["adapter"] == 0.5
    assert "the adapters differ" in found.words()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_weights_of_every_type_that_an_adapter_may_have_are_compared(tmp_path, dtype):
    runs = [write_run(tmp_path / str(weight), weight=weight, dtype=dtype) for weight in (0.25, 0.5)]
    assert differences.compare(*runs).sizes["adapter"] == 0.25


def test_what_is_not_a_number_is_the_largest_difference(two):
    change(two[1], 2, "logprobs", [float("nan"), -2.0])
    shutil.rmtree(two[1] / "adapter")
    (write_run(two[1] / "other", weight=float("nan")) / "adapter").rename(two[1] / "adapter")
    sizes = differences.compare(*two).sizes
    assert math.isnan(sizes["logprobs"])
    assert math.isnan(sizes["adapter"])

    def no_number(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    printed = CliRunner().invoke(command, [*(str(run) for run in two), "--json"]).output
    told = json.loads(printed, parse_constant=no_number)
    assert (told["sizes"]["adapter"], told["first"]["b"]) == ("nan", "nan")


@pytest.mark.parametrize(
    ("kind", "value"),
    [("rows", None), ("tokens", ["x"]), ("logprobs", [None, -2.0]), ("rewards", "ab")],
)
def test_a_step_as_no_run_writes_it_is_named(two, kind, value):
    change(two[1], 2, kind, value)
    with pytest.raises(DataError, match="step 2 in "):
        differences.compare(*two)


@pytest.mark.parametrize("harm", [lambda path: path.unlink(), lambda path: path.write_bytes(b"x" * 99)])
def test_an_adapter_that_cannot_be_read_is_named(two, harm):
    harm(two[1] / "adapter" / exports.WEIGHTS)
    with pytest.raises(DataError, match=exports.WEIGHTS):
        differences.compare(*two)


def test_nothing_is_said_of_adapters_that_are_not_there(two):
    for run in two:
        (run / "run.json").write_text("{}")
    assert differences.compare(*two).words() == "identical in all 3 steps; neither has an adapter yet"


def test_a_run_that_stopped_early_is_not_identical(tmp_path):
    found = differences.compare(write_run(tmp_path / "a"), write_run(tmp_path / "b", steps=2))
    assert not found.identical
    assert found.words() == "only one of them has step 3"


def test_a_run_without_a_step_cannot_be_compared(two):
    (two[1] / trace.FILE).unlink()
    with pytest.raises(DataError, match="has taken no step yet"):
        differences.compare(*two)


def test_the_command_says_it_by_its_exit_code(two):
    same = CliRunner().invoke(command, [str(run) for run in two])
    assert (same.exit_code, same.output) == (0, "identical in all 3 steps, and in the adapter\n")
    change(two[1], 2, "rewards", [0.5, 1.0])
    other = CliRunner().invoke(command, [*(str(run) for run in two), "--json"])
    assert other.exit_code == 1
    assert json.loads(other.output)["first"]["kind"] == "rewards"
