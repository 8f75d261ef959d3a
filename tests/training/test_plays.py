"""Plays under a label: by one process at a time, and on record only when a player is there to be asked."""

import os
import shutil
import threading

import pytest

from tests.training.gate_run import RECIPE, SMALL, _Player, candidate
from training import lineage, plays, prepare, recipe, seal, splits
from training.errors import ConfigError, DataError, SubstrateError
from training.evaluate import EvaluationSettings, read_records
from training.locks import locked


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plays")
    (folder / "config.json").write_text("{}")
    prepare.prepare(recipe.load(RECIPE, SMALL), folder / "run", base_dir=folder, image="test")
    return folder / "run"


@pytest.fixture
def run(prepared, tmp_path):
    return shutil.copytree(prepared, tmp_path / "run")


class Player:
    """Solves everything, one turn of each episode at a time; `before` is called before each turn."""

    def __init__(self, run, split, before=lambda: None):
        chosen = recipe.read_resolved(run / "recipe.json")
        self.player = _Player(chosen, lineage.read_split(run, split), lambda digest: True)
        self.before = before

    def act(self, conversations):
        self.before()
        return self.player.act(conversations)


def perform(run, label, policy, make=None, split="test", **play):
    rules = recipe.read_resolved(run / "recipe.json").environment
    settings = EvaluationSettings(rules.make(), max_turns=rules.max_turns, reward=rules.reward, policy=policy)
    tasks = [splits.row_task(row) for row in lineage.read_split(run, split)]
    what = plays.Play(split, label, tasks, settings, sealed_as=policy, **play)
    return plays.perform(run, what, make or (lambda: Player(run, split)))


def test_two_processes_do_not_play_one_label(run):
    """What is locked is the label: another may be played at the same time."""
    told, going = [], threading.Event()

    def second():
        going.wait()
        for label in ("one-test", "two-test"):
            try:
                perform(run, label, f"adapter:{label}")
            except SubstrateError as error:
                told.append(str(error))
        done.set()

    done = threading.Event()
    thread = threading.Thread(target=second)
    thread.start()

    def before():
        going.set()
        done.wait()

    entry = perform(run, "one-test", "adapter:one-test", lambda: Player(run, "test", before))
    thread.join()
    assert entry["n"] == 64
    assert len(read_records(plays.records_path(run, "one-test"))) == 64
    (problem,) = told
    assert "one-test is being played by another process" in problem
    assert "wait for its end" in problem
    assert {play["label"] for play in lineage.read(run)["test_plays"]} == {"one-test", "two-test"}


def test_the_trainer_waits_for_a_driver_that_is_dying(run):
    perform(run, "dev-0000", "base:0", split="dev")
    with locked(run / "evaluations" / ".dev-0000.lock"):  # by the same thread, which may hold it twice
        assert perform(run, "dev-0000", "base:0", split="dev")["n"] == 4


def test_a_player_that_cannot_be_made_leaves_the_seal_whole(run):
    def nowhere():
        raise SubstrateError("this Python lacks torch")

    with pytest.raises(SubstrateError):
        perform(run, "one-test", "adapter:1", nowhere)
    assert seal.STARTED not in lineage.read(run)
    assert perform(run, "one-test", "adapter:1")["solved"] == 64


def test_no_player_is_made_for_what_the_seal_refuses(run):
    perform(run, "one-test", "adapter:1")
    with pytest.raises(ConfigError, match="test is sealed: adapter:1 has played"):
        perform(run, "two-test", "adapter:1", lambda: pytest.fail("nobody needs a player"))


@pytest.mark.parametrize("ends", [True, False])
def test_a_base_that_was_looked_at_does_not_stop_the_runs_own_play(run, ends):
    base = "base:" + lineage.read(run)["base"]["digest"][:16]

    class Stopped(Exception):
        pass

    def stop():
        raise Stopped

    if ends:
        perform(run, "base-test", base)
    else:
        with pytest.raises(Stopped):
            perform(run, "base-test", base, lambda: Player(run, "test", stop))
    assert perform(run, "baseline", base)["n"] == 64
    assert perform(run, "baseline", base)["n"] == 64
    (entry,) = [play for play in lineage.read(run)["test_plays"] if play["label"] == "baseline"]
    assert entry["again"] == seal.OWN
    with pytest.raises(ConfigError, match="test is sealed"):
        perform(run, "final", base)


def test_the_runs_own_first_play_of_its_base_is_no_repeat(run):
    base = "base:" + lineage.read(run)["base"]["digest"][:16]
    perform(run, "baseline", base)
    assert [play["again"] for play in lineage.read(run)["test_started"]] == [None]


@pytest.mark.parametrize("name", ["split", "settings", "policy", "n"])
def test_an_entry_that_was_damaged_is_told_clearly(run, name):
    perform(run, "one-dev", candidate({"digest": "1" * 16}), split="dev")
    with lineage.changing(run) as manifest:
        manifest["evaluations"]["one-dev"].pop(name)
    with pytest.raises(DataError, match=f"one-dev is on record without {name}"):
        perform(run, "one-dev", candidate({"digest": "1" * 16}), split="dev")


def test_records_are_on_disk_before_the_seal_notes_them(run, monkeypatch):
    """A node that is lost between the two must not look like one from which lost episodes were taken."""
    path, on_disk, noted = plays.records_path(run, "one-test"), [0], []
    sync, note = os.fsync, seal.note_progress

    def synced(handle):
        sync(handle)
        if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            on_disk.append(path.stat().st_size)

    def noting(*args):
        noted.append((path.stat().st_size, on_disk[-1]))
        note(*args)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(seal, "note_progress", noting)
    perform(run, "one-test", "adapter:one")
    assert len(noted) > 1
    assert all(size == safe > 0 for size, safe in noted)
