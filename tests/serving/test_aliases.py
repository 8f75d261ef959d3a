import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serving import aliases
from serving.aliases import Aliases, ReplacedError
from training.errors import DataError

A, B = "maze-aaaaaaaaaaaa", "maze-bbbbbbbbbbbb"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "serving" / "aliases.json"


def test_there_are_none_before_the_first_promotion(path):
    assert aliases.read(path) == Aliases(0, None, None, 0.0, None)


def test_what_was_written_is_read_and_its_changes_are_counted(path):
    first = aliases.change(path, Aliases(), live=A)
    second = aliases.change(path, first, canary=B, canary_share=0.25)
    assert aliases.read(path) == second == Aliases(2, A, B, 0.25, None)
    assert second.names == {A, B}
    assert [entry.name for entry in path.parent.iterdir()] == ["aliases.json"]


def test_of_two_that_change_the_same_version_one_is_refused(path):
    known = aliases.change(path, Aliases(), live=A)

    def canary(number: int) -> str:
        try:
            return aliases.change(path, known, canary=f"maze-{number:012x}", canary_share=0.1).canary
        except ReplacedError:
            return ""

    with ThreadPoolExecutor(8) as many:
        done = [name for name in many.map(canary, range(16)) if name]
    assert len(done) == 1
    assert aliases.read(path) == Aliases(2, A, done[0], 0.1, None)
    with pytest.raises(ReplacedError, match="has version 2"):
        aliases.change(path, known, live=B)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"canary_share": 1.5}, "canary_share is 1.5"),
        ({"canary_share": float("nan")}, "canary_share is nan"),
        ({"canary_share": True}, "canary_share is True"),
        ({"canary_share": 0.5}, "without a canary"),
        ({"canary": A}, "two aliases"),
        ({"version": -1}, "version is -1"),
        ({"previous": 7}, "names are"),
        ({"live": ""}, "names are"),
        ({"extra": 1}, "holds no aliases"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(change, says, path):
    path.parent.mkdir()
    sound = {"version": 1, "live": A, "canary": None, "canary_share": 0.0, "previous": None}
    path.write_text(json.dumps(sound | change))
    with pytest.raises(DataError, match=says):
        aliases.read(path)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"version": 1, "version": 2}', "[" * 100_000])
def test_what_is_no_aliases_file_is_refused(content, path):
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(DataError, match="aliases"):
        aliases.read(path)


def test_served_names_are_those_of_ray_serve():
    assert aliases.served_name("maze", A) == f"maze:{A}"
    assert aliases.served_name("maze", None) == "maze"
