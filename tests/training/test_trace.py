"""The record of steps survives a crash at any place of it."""

import pytest

from training import trace
from training.errors import DataError


def row(step: int, reward: float = 0.5) -> trace.Row:
    return trace.of_step(step, rows=["3"], tokens=[[1, 2]], logprobs=[[-0.5, -1.5]], rewards=[reward])


def test_a_row_tells_episodes_apart():
    one = row(1)
    assert one["logprobs"] == [-1.0]
    other = trace.of_step(1, rows=["3"], tokens=[[1, 3]], logprobs=[[-0.5, -1.5]], rewards=[0.5])
    assert {key for key in one if one[key] != other[key]} == {"tokens"}


def test_an_unfinished_line_and_earlier_words_on_a_step_do_not_count(tmp_path):
    path = tmp_path / trace.FILE
    for one in (row(1), row(2, 0.1), row(2, 0.9)):
        trace.append(path, one)
    with path.open("a") as file:
        file.write('{"step": 3, "rows')
    assert trace.read(path) == [row(1), row(2, 0.9)]


@pytest.mark.parametrize("line", ["{garbage", "[]", "{}", "\0\0", "\udcff", "[" * 100_000, '{"step": null}'])
def test_a_line_that_is_no_row_is_named(tmp_path, line):
    path = tmp_path / trace.FILE
    trace.append(path, row(1))
    path.write_bytes(path.read_bytes() + line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(DataError, match=f"^line 2 of {path}"):
        trace.read(path)


def test_going_back_drops_what_was_lost(tmp_path):
    path = tmp_path / trace.FILE
    for step in (1, 2, 3, 4):
        trace.append(path, row(step))
    trace.rewind(path, 2, row(2))
    assert trace.read(path) == [row(1), row(2)]
    trace.append(path, row(3))
    assert [one["step"] for one in trace.read(path)] == [1, 2, 3]


def test_a_step_whose_row_was_not_written_any_more_gets_that_of_its_checkpoint(tmp_path):
    path = tmp_path / trace.FILE
    trace.append(path, row(1))
    trace.rewind(path, 2, row(2))
    assert trace.read(path) == [row(1), row(2)]


def test_before_the_first_checkpoint_nothing_is_left(tmp_path):
    path = tmp_path / trace.FILE
    trace.rewind(path, 0, None)
    assert not path.exists()
    trace.append(path, row(1))
    trace.rewind(path, 0, None)
    assert trace.read(path) == []
