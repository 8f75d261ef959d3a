"""The gate decides on what the folder held at one moment, whoever writes into it meanwhile."""

import errno
import os
import shutil
import sys
import tempfile

import pytest

from tests.training import gate_run
from training.errors import DataError, SubstrateError
from training.gate import judge as judging
from training.gate import snapshot
from training.gate.judge import judge

NESTED = "checkpoints/step-000024/adapter"


def test_what_changes_while_the_gate_reads_changes_no_decision(run, monkeypatch):
    """Records, splits and manifest were read twice: once against their digests, once for what they say."""
    before, _ = judge([run])
    read = judging.read

    def meanwhile(copy):
        for path in (run / "evaluations").glob("*.jsonl"):
            path.write_bytes(b"")
        shutil.rmtree(run / "data")
        shutil.rmtree(run / "adapter")
        return read(copy)

    monkeypatch.setattr(judging, "read", meanwhile)
    after, written = judge([run])
    assert after == before
    assert (run / "gate.json").is_file()
    assert written["decision"] == "passed"


def test_what_is_played_again_is_what_was_judged(run):
    seen = []

    def replay(evidence, split, names):
        seen.append(evidence.folder)
        assert (evidence.folder / "adapter").is_dir()
        return []

    judge([run], replay=replay)
    assert seen[0] != run
    assert not seen[0].exists(), "the copy goes when the decision is made"


def test_errors_name_the_run_and_not_the_copy(run):
    gate_run.forge(run, "final", lambda lines: lines.pop(), note=[])
    with pytest.raises(DataError) as error:
        judge([run])
    assert "skypod-gate-" not in str(error.value)


@pytest.mark.parametrize(
    "folder", ["../elsewhere", "/etc", "", ".", None, 3, "a\0b", "\ud800", "adapter/\ud800x"]
)
def test_nothing_outside_the_run_is_copied(run, folder):
    gate_run.edit(run / "run.json", lambda manifest: manifest["adapter"].update(folder=folder))
    with snapshot.of(run) as copy:
        assert sorted(path.name for path in copy.iterdir()) == [
            "ancestry", "data", "evaluations", "recipe.json", "run.json",
        ]  # fmt: skip
    with pytest.raises(DataError):
        judge([run])


@pytest.mark.parametrize(
    "linked", ["checkpoints", "checkpoints/step-000024", "checkpoints/step-000024/adapter"]
)
def test_an_adapter_behind_a_link_is_not_within_the_run(run, tmp_path, linked):
    nested = run / NESTED
    nested.parent.mkdir(parents=True)
    (run / "adapter").rename(nested)
    gate_run.edit(
        run / "run.json",
        lambda manifest: manifest["adapter"].update(folder=NESTED),
    )
    assert judge([run])[0].passed
    (run / linked).rename(tmp_path / "elsewhere")
    (run / linked).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="is not in files of its own within the run"):
        judge([run])


def test_what_replays_read_is_no_link(run, tmp_path):
    (tmp_path / "elsewhere").write_text('{"allowed_token_ids": [1]}')
    (run / "generation.json").symlink_to(tmp_path / "elsewhere")
    gate_run.refused(run, "generation.json is no file of its own")


def test_an_adapter_may_be_larger_than_records(run, monkeypatch):
    monkeypatch.setattr(snapshot, "LARGEST", 0)
    with snapshot.of(run) as copy:
        assert (copy / "run.json").stat().st_size == (run / "run.json").stat().st_size
        assert (copy / "run.json").read_bytes().strip(b"\0") == b""
    monkeypatch.undo()
    monkeypatch.setattr(snapshot, "LARGEST", max(p.stat().st_size for p in run.rglob("*") if p.is_file()))
    weights = run / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(b"1" * (snapshot.LARGEST + 1))
    with snapshot.of(run) as copy:
        assert (copy / "adapter" / weights.name).read_bytes() == weights.read_bytes()


def test_a_tree_that_is_too_deep_is_told(run, monkeypatch):
    deep = run / "evaluations"
    for _ in range(600):
        deep = deep / "a"
    deep.mkdir(parents=True)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        with pytest.raises(DataError, match="cannot be read"):
            judge([run])
    finally:
        sys.setrecursionlimit(limit)


def test_no_room_for_the_copy_is_no_fault_of_the_run(run, monkeypatch):
    before, _ = judge([run])

    def full(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(snapshot.shutil, "copyfile", full)
    with pytest.raises(SubstrateError, match="there is no room for a copy of 'one'"):
        judge([run])
    assert (run / "gate.json").is_file()
    monkeypatch.undo()
    assert judge([run])[0] == before


def test_no_room_for_a_temporary_folder_is_no_fault_of_the_run(run, monkeypatch):
    judge([run])

    def none(**_):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(snapshot.tempfile, "TemporaryDirectory", none)
    with pytest.raises(SubstrateError, match="No usable temporary directory"):
        judge([run])
    assert (run / "gate.json").is_file()


def test_a_copy_that_cannot_be_removed_changes_no_decision(run, tmp_path, monkeypatch):
    decision, _ = judge([run])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def stuck(path, *args, **kwargs):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patched:
        for name in ("rmdir", "unlink"):
            patched.setattr(os, name, stuck)
        assert judge([run])[0] == decision
    assert list(tmp_path.glob("skypod-gate-*"))
