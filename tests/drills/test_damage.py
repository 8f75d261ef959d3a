"""Each harm against the store that has to see it."""

from pathlib import Path

import pytest

from rehearsal.drills import damage
from training.checkpoints.store import Identity, Store
from training.errors import DataError


def store(folder: Path, run: str = "one") -> Store:
    found = Store(folder, Identity(run, "base"), keep=3)
    for step in (1, 2, 3):
        with found.writing(step, {"at": step}) as building:
            (building / "weights.bin").write_bytes(bytes(range(256)) * step)
    return found


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (damage.tear, "checkpoint.json cannot be read"),
        (damage.truncate, "weights.bin is not what was written"),
        (damage.flip, "weights.bin is not what was written"),
        (damage.remove, "names step 3, of which there is no checkpoint"),
    ],
)
def test_the_step_before_is_used_and_the_reason_told(tmp_path, harm, words):
    checked = store(tmp_path)
    harm(tmp_path)
    found = checked.newest()
    assert found.checkpoint.step == 2
    assert words in found.faults[0]


def test_a_foreign_checkpoint_is_refused_and_taken_away_again(tmp_path):
    checked = store(tmp_path / "mine")
    store(tmp_path / "theirs", run="other")
    planted = damage.plant(tmp_path / "mine", tmp_path / "theirs")
    assert planted == damage.newest(tmp_path / "mine")
    with pytest.raises(DataError, match="is of run other, not of one"):
        checked.newest()
    damage.remove(tmp_path / "mine")
    assert checked.newest().checkpoint.step == 3
