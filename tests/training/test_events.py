"""Events are found in a file that a crash tore and in a log that others write to."""

import pytest

from training import events
from training.events import MARK, EventLog, parse


def test_what_is_emitted_is_read_from_the_file_and_from_the_log(tmp_path, capsys):
    EventLog(tmp_path / "events.jsonl", attempt=2).emit("step", step=3)
    (read,) = events.read(tmp_path / "events.jsonl")
    assert (read["event"], read["attempt"], read["step"]) == ("step", 2, 3)
    assert list(parse(capsys.readouterr().out.splitlines())) == [read]


@pytest.mark.parametrize(
    "line",
    [
        f'{MARK}{{"event": "step"}}',
        f'{MARK}{{"event": "step"}}(PolicyRank pid=7) a warning',
        f'(PolicyRank pid=7) a warning{MARK}{{"event": "step"}}',
    ],
)
def test_other_writers_of_the_log_hide_no_event(line):
    assert list(parse([line])) == [{"event": "step"}]


@pytest.mark.parametrize(
    "line", ["", "a line", MARK, f'{MARK}{{"event": "st', f"{MARK}[1]", f'{MARK}{{"a": 1}}']
)
def test_what_is_no_event_is_passed_over(line):
    assert list(parse([line])) == []


def test_a_writer_that_was_killed_within_a_line_takes_no_other_with_it(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path, to_stdout=False)
    log.emit("step", step=1)
    with path.open("a") as file:
        file.write('{"event": "st')
    EventLog(path, to_stdout=False).emit("step", step=2)
    assert [event["step"] for event in events.read(path)] == [1, 2]
