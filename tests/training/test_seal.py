"""Sealed splits: one play per candidate, and no repeat that a reader would not see."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from training import lineage, seal
from training.errors import ConfigError, DataError
from training.files import Appender

WHY = "the server has to repeat the trainer's actions"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text(json.dumps({"evaluations": {}, "attempts": []}))
    return tmp_path


def play(run: Path, candidate: str, split: str, label: str, again: str | None = None) -> Path:
    records = run / f"{label}.jsonl"
    seal.check(run, candidate, split, label, again, records)
    noting = partial(seal.note_progress, run, split, label, records)
    Appender(records, noting).append(f"{candidate} {label}\n")
    seal.log(run, candidate, split, label, records)
    return records


@pytest.mark.parametrize("split", seal.SEALED)
def test_a_second_play_of_a_candidate_is_refused_without_a_reason(run, split):
    play(run, "adapter:1", split, "final")
    with pytest.raises(ConfigError, match=rf"{split} is sealed: adapter:1 has played at .* as 'final'"):
        seal.check(run, "adapter:1", split, "lucky")
    play(run, "adapter:1", split, "served", WHY)
    with pytest.raises(ConfigError, match="sealed"):
        seal.check(run, "adapter:1", split, "third")
    shown = seal.plays(lineage.read(run), "adapter:1", split)
    assert [(entry["label"], entry["again"]) for entry in shown] == [("final", None), ("served", WHY)]


def test_other_candidates_and_splits_are_plays_of_their_own(run):
    play(run, "adapter:1", "test", "final")
    play(run, "base:0", "test", "baseline")
    play(run, "adapter:1", "test-512", "final-test-512")
    for label in ("a", "b"):
        play(run, "adapter:1", "dev", label)
    assert [entry["label"] for entry in lineage.read(run)["test_plays"]] == [
        "final",
        "baseline",
        "final-test-512",
    ]


def test_an_unfinished_play_is_continued_under_its_label_only(run):
    seal.check(run, "adapter:1", "test", "final")
    with pytest.raises(ConfigError, match=r"begun at .* as 'final'") as refused:
        seal.check(run, "adapter:1", "test", "another")
    assert "continue that play" in refused.value.remedy
    play(run, "adapter:1", "test", "final")
    assert len(lineage.read(run)["test_plays"]) == 1


def test_a_label_belongs_to_one_play(run):
    play(run, "adapter:1", "test", "final")
    for candidate in ("adapter:1", "adapter:2"):
        with pytest.raises(ConfigError, match="final holds a finished play of test by adapter:1"):
            seal.check(run, candidate, "test", "final", WHY)
    seal.check(run, "adapter:1", "test-512", "begun")
    with pytest.raises(ConfigError, match="begun belongs to adapter:1 on test-512"):
        seal.check(run, "adapter:2", "test-512", "begun", WHY)


BLANKS = ["", "  ", "\u3000", "\u200b\u2060", "\u2800", "\u3164\u115f\uffa0", "...", "\u0301", "\U000e0041"]
"""Nothing, spaces of all kinds, letters that show nothing, marks without a word."""


@pytest.mark.parametrize("blank", BLANKS)
def test_an_empty_reason_is_none(run, blank):
    play(run, "adapter:1", "test", "final")
    with pytest.raises(ConfigError, match=r"reason .* is empty"):
        seal.check(run, "adapter:1", "test", "again", blank)


@pytest.mark.parametrize("reason", [WHY, "サーバー", "№ 7", "ㅎ"])
def test_a_reason_may_be_in_any_language(run, reason):
    play(run, "adapter:1", "test", "final")
    seal.check(run, "adapter:1", "test", "again", reason)


def test_a_reason_is_kept_in_one_line(run):
    """Spaces of all kinds are typed without being seen."""
    play(run, "adapter:1", "test", "final")
    play(run, "adapter:1", "test", "again", "wrong GPU\n see\tticket\xa0: 7\u3000!")
    (repeat,) = [entry for entry in lineage.read(run)["test_plays"] if entry["label"] == "again"]
    assert repeat["again"] == "wrong GPU see ticket : 7 !"


def test_asking_whether_a_play_is_allowed_notes_nothing(run):
    play(run, "adapter:1", "test", "final")
    before = (run / "run.json").read_bytes()
    seal.require_allowed(run, "adapter:2", "test", "other")
    seal.require_allowed(run, "adapter:1", "dev", "other")
    with pytest.raises(ConfigError, match="sealed"):
        seal.require_allowed(run, "adapter:1", "test", "other")
    assert (run / "run.json").read_bytes() == before


def test_finishing_is_said_once_and_with_the_records_played(run):
    records = play(run, "adapter:1", "test", "final")
    seal.log(run, "adapter:1", "test", "final", records)
    assert len(lineage.read(run)["test_plays"]) == 1
    records.write_text("better\n")
    with pytest.raises(DataError, match="records were changed"):
        seal.log(run, "adapter:1", "test", "final", records)
    with pytest.raises(DataError, match="not begun"):
        seal.log(run, "adapter:2", "test", "unannounced", records)


def test_plays_that_end_at_once_are_all_on_record(run):
    def one(number: int) -> None:
        play(run, f"adapter:{number}", "test", f"label-{number}")
        lineage.append(run, "attempts", {"number": number})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(24)))
    manifest = lineage.read(run)
    assert len(manifest["test_plays"]) == len(manifest["test_started"]) == len(manifest["attempts"]) == 24


def test_only_one_of_two_plays_that_begin_at_once_is_allowed(run):
    def begin(label: str) -> bool:
        try:
            seal.check(run, "adapter:1", "test", label)
        except ConfigError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(begin, [f"label-{number}" for number in range(8)])) == 1


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(DataError, match=r"holds no run\.json"):
        seal.check(tmp_path, "adapter:1", "test", "final")
