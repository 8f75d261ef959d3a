"""A checkpoint is whole or it is passed over; what is passed over is named; nothing finished is lost."""

import errno
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.training.checkpoint_files import OWN, cut, empty, flip, write
from training.checkpoints import store as module
from training.checkpoints.store import META, POINTER, Identity, Store
from training.errors import DataError


def test_what_was_written_is_what_is_found(store):
    write(store, 1)
    folder = write(store, 2)
    found = store.newest()
    assert found.faults == []
    assert (found.checkpoint.step, found.checkpoint.folder) == (2, folder)
    assert found.checkpoint.state == {"seed": 7}
    assert json.loads((store.folder / POINTER).read_text())["digest"] == found.checkpoint.digest


def test_an_empty_place_holds_nothing(store):
    assert store.newest().checkpoint is None
    assert store.steps() == []


def test_only_the_newest_are_kept(store):
    for step in range(1, 8):
        write(store, step)
    assert store.steps() == [5, 6, 7]
    assert sorted(path.name for path in store.folder.iterdir()) == [
        POINTER,
        *(f"step-00000{step}" for step in (5, 6, 7)),
    ]


@pytest.mark.parametrize("harm", [cut, flip, empty, Path.unlink])
@pytest.mark.parametrize("name", ["adapter/a.safetensors", "optimizer.safetensors", META])
def test_a_damaged_one_is_named_and_the_one_before_it_is_used(store, harm, name):
    write(store, 1)
    write(store, 2)
    harm(store.path(2) / name)
    found = store.newest()
    assert found.checkpoint.step == 1
    assert str(store.path(2)) in found.faults[0]


def test_a_changed_state_is_damage(store):
    write(store, 1)
    meta = json.loads((store.path(1) / META).read_text())
    (store.path(1) / META).write_text(json.dumps(meta | {"state": {"seed": 8}}))
    assert store.newest().checkpoint is None


def test_a_damaged_one_is_replaced_when_its_step_is_reached_again(store):
    write(store, 1)
    flip(write(store, 2) / "optimizer.safetensors")
    assert store.newest().checkpoint.step == 1
    write(store, 2)
    assert store.newest().checkpoint.step == 2


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"step": 999}', '{"step": null}', '{"step": "2"}', '{"step": [1]}', "[" * 100_000],
)
def test_a_pointer_that_is_empty_or_of_the_future_is_named_and_changes_nothing(store, content):
    write(store, 1)
    (store.folder / POINTER).write_text(content)
    found = store.newest()
    assert found.checkpoint.step == 1
    assert POINTER in found.faults[0]


def test_a_pointer_that_is_no_file_changes_nothing(store):
    write(store, 1)
    (store.folder / POINTER).unlink()
    (store.folder / POINTER).mkdir()
    found = store.newest()
    assert found.checkpoint.step == 1
    assert POINTER in found.faults[0]


@pytest.mark.parametrize("harm", [lambda meta: os.mkfifo(meta), lambda meta: meta.write_text("[" * 100_000)])
def test_a_checkpoint_whose_meta_nobody_wrote_is_passed_over(store, harm):
    write(store, 1)
    meta = write(store, 2) / META
    meta.unlink()
    harm(meta)
    found = store.newest()
    assert found.checkpoint.step == 1
    assert str(store.path(2)) in found.faults[0]


@pytest.mark.parametrize("key", ["format", "run", "base", "step", "state", "files", "digest"])
def test_a_meta_that_lacks_a_key_under_a_digest_that_fits_is_passed_over(store, key):
    write(store, 1)
    path = write(store, 2) / META
    meta = json.loads(path.read_text())
    del meta["digest"]
    meta.pop(key, None)
    sealed = {} if key == "digest" else {"digest": module._digest(meta)}
    path.write_text(json.dumps(meta | sealed))
    found = store.newest()
    assert found.checkpoint.step == 1
    assert key in found.faults[0]


@pytest.mark.parametrize("keep", [1, 3])
def test_damaged_ones_do_not_push_out_those_written_after_going_back(store, keep):
    store.keep = keep
    for step in (7, 8, 9):
        write(store, step)
    for step in store.steps():
        flip(store.path(step) / META)
    for step in (1, 2):
        write(store, step)
        assert store.newest().checkpoint.step == step


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(store, monkeypatch):
    write(store, 1)

    def stale(_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(store.folder))

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, stale)
    with pytest.raises(OSError, match="Stale"):
        store.newest()


def test_a_crash_between_the_checkpoint_and_the_pointer_loses_nothing(store):
    write(store, 1)
    before = (store.folder / POINTER).read_text()
    write(store, 2)
    (store.folder / POINTER).write_text(before)
    assert store.newest().checkpoint.step == 2


@pytest.mark.parametrize(
    ("other", "said"),
    [(Identity("run-2", OWN.base), "of run run-2, not of run-1"), (Identity("run-1", "c" * 64), "of base c")],
)
def test_one_of_another_run_or_base_is_refused(store, other, said):
    write(Store(store.folder, other, keep=3), 3)
    with pytest.raises(DataError, match=said):
        store.newest()


def test_one_of_another_format_is_refused(store, monkeypatch):
    monkeypatch.setattr("training.checkpoints.store.FORMAT", 9)
    write(store, 1)
    monkeypatch.undo()
    with pytest.raises(DataError, match="has format 9, this version reads 1"):
        store.newest()


def test_one_under_the_name_of_another_step_is_refused(store):
    write(store, 1).rename(store.path(5))
    with pytest.raises(DataError, match="is of step 1, not of 5"):
        store.newest()


def test_an_error_while_writing_leaves_nothing(store):
    write(store, 1)
    with pytest.raises(OSError, match="No space"), store.writing(2, {}):
        raise OSError(28, "No space left on device")
    assert sorted(path.name for path in store.folder.iterdir()) == [POINTER, "step-000001"]


def test_who_lost_the_run_publishes_nothing(store):
    @contextmanager
    def closed():
        raise DataError("another driver has the run")
        yield

    with pytest.raises(DataError, match="another driver"):
        write(Store(store.folder, OWN, keep=3, fence=closed), 1)
    assert store.steps() == []


KILLED = """
import os, signal, sys
from pathlib import Path
from training.checkpoints import store as module
from training.checkpoints.store import Identity, Store

calls = {"left": int(sys.argv[2])}

def dying(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        if calls["left"] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        calls["left"] -= 1
        return real(*args, **kwargs)
    setattr(os, name, call)

for name in ("rename", "replace", "fsync", "rmdir", "unlink", "mkdir", "open"):
    dying(name)
store = Store(Path(sys.argv[1]), Identity("run-1", "b" * 64), keep=2)
with store.writing(4, {"seed": 7}) as folder:
    (folder / "adapter").mkdir()
    (folder / "adapter" / "a.safetensors").write_bytes(b"four")
print("written")
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_the_last_or_the_new_one_whole(tmp_path):
    """The process is killed at its first, second, third ... call that changes the file system."""
    ended, seen = False, set()
    for moment in range(200):
        folder = tmp_path / str(moment)
        store = Store(folder, OWN, keep=2)
        for step in (2, 3):
            write(store, step)
        command = [sys.executable, "-c", KILLED, str(folder), str(moment)]
        died = subprocess.run(command, capture_output=True, text=True, check=False)
        found = store.newest()
        seen.add(found.checkpoint.step)
        assert found.faults == []
        store.sweep()
        assert not [name for name in os.listdir(folder) if name.startswith(".")]
        if died.returncode == 0:
            ended = True
            break
        assert died.returncode == -signal.SIGKILL, died.stderr
    assert ended
    assert seen == {3, 4}
