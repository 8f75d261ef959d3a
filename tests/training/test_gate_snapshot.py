"""The gate decides on what the folder held at one moment, whoever writes into it meanwhile."""

import shutil

import pytest

from tests.training import gate_run
from training.errors import DataError
from training.gate import judge as judging
from training.gate import snapshot
from training.gate.judge import judge


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


@pytest.mark.parametrize("folder", ["../elsewhere", "/etc", "", None, 3])
def test_nothing_outside_the_run_is_copied(run, folder):
    gate_run.edit(run / "run.json", lambda manifest: manifest["adapter"].update(folder=folder))
    with snapshot.of(run) as copy:
        assert sorted(path.name for path in copy.iterdir()) == [
            "ancestry", "data", "evaluations", "recipe.json", "run.json",
        ]  # fmt: skip
