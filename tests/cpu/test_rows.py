"""What a run trains on and plays is what its recipe draws, whatever digest the manifest has at the time."""

from types import SimpleNamespace

import pytest

from tests.training.gate_run import RECIPE, SMALL
from training import lineage, prepare, recipe, splits
from training.errors import DataError

pytest.importorskip("skyrl")
pytestmark = pytest.mark.skyrl


@pytest.fixture
def run(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    prepare.prepare(recipe.load(RECIPE, SMALL), tmp_path / "one", base_dir=base, image="test", source=RECIPE)
    return tmp_path / "one"


def leak(run, split):
    """The split holds sealed tasks, and the manifest has its new digest."""
    rows = [{**row, "split": split} for row in lineage.read_split(run, "test-512")]
    digest = splits.write(run / "data" / f"{split}.jsonl", rows)
    lineage.update(run, data={**lineage.read(run)["data"], split: digest})


def test_the_trainer_reads_no_exchanged_rows(run):
    import rehearsal.cpu.skyrl_workers  # noqa: F401 (SkyRL's import of flash_attn on a machine without)
    from training.skyrl.evaluation import Evaluator
    from training.skyrl.experiment import MazeExperiment

    chosen = recipe.read_resolved(run / "recipe.json")
    experiment = MazeExperiment.__new__(MazeExperiment)
    experiment.run_dir, experiment.recipe = run, chosen
    assert len(experiment.get_train_dataset()) == SMALL["data.train_mazes"]
    assert len(experiment.get_eval_dataset()) == SMALL["data.dev_mazes"]
    leak(run, "train")
    leak(run, "dev")
    evaluator = Evaluator.__new__(Evaluator)
    evaluator._run_dir, evaluator._recipe, evaluator._events = run, chosen, SimpleNamespace()
    for read in (
        experiment.get_train_dataset,
        experiment.get_eval_dataset,
        lambda: evaluator.play("dev", "dev-0000", None),
    ):
        with pytest.raises(DataError, match="are not those that its recipe draws"):
            read()
