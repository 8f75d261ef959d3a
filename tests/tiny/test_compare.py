"""Imitation beside reinforcement: the same CPU time, judged by the same evaluator on the same splits."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from rehearsal.tiny import boards, compare, habits, perception
from rehearsal.tiny.demonstrators import Habits
from rehearsal.tiny.play import play
from training import lineage, prepare, recipe
from training.errors import DataError
from training.evaluate import read_records

RECIPE = Path(__file__).parents[2] / "recipes" / "maze-smoke.toml"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in a real comparison; CPU time of several threads would hold their waiting too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def seeing():
    policy, _ = perception.load(perception.shipped())
    return policy


@pytest.fixture
def run_dir(tmp_path) -> Path:
    sizes = {"data.train_mazes": 12, "data.dev_mazes": 1, "data.test_512_mazes": 4, "data.ood_mazes": 3}
    (tmp_path / "config.json").write_text("{}")
    folder = tmp_path / "run"
    prepare.prepare(recipe.load(RECIPE, sizes), folder, base_dir=tmp_path, image="test")
    return folder


def test_the_evaluator_judges_what_the_fast_player_played(seeing, run_dir):
    found = compare.judge(run_dir, seeing, "perception")
    direct = play(seeing, boards.patches(), boards.test(), boards.MAX_TURNS)
    records = read_records(run_dir / "evaluations" / "perception-test.jsonl")
    assert [record.solved for record in records] == direct.solved.tolist()
    assert found["test"]["solved"] == direct.solved.sum() >= 60
    manifest = lineage.read(run_dir)
    assert {p["label"]: p["candidate"][:11] for p in manifest["test_plays"]} == {
        "perception-test": "perception:",
        "perception-test-512": "perception:",
    }
    assert compare.judge(run_dir, seeing, "perception") == found
    assert len(lineage.read(run_dir)["test_plays"]) == 2


def test_the_time_that_is_left_becomes_steps():
    assert compare.affordable(left_s=100.0, per_step_s=0.5) == 260
    assert compare.affordable(left_s=0.1, per_step_s=0.5) == 1
    assert compare.affordable(left_s=-5.0, per_step_s=0.5) == 1


def test_teaching_changes_the_policy_and_looks_at_dev_beside_it(monkeypatch):
    monkeypatch.setattr(compare, "_CALIBRATION_STEPS", 1)
    monkeypatch.setattr(habits, "Plan", partial(habits.Plan, mazes=40))
    policy, _ = perception.load(perception.shipped())
    before = compare._digest(policy)
    clock = compare.Clock()
    began = clock.spent()
    assert compare.teach(policy, Habits(), seed=0, budget_s=0.0, clock=clock) == 1
    assert clock.spent() > began
    assert [rate > 0.9 for _, rate in clock.dev] == [True]
    assert clock.apart > 0
    assert compare._digest(policy) != before


def test_the_budget_is_the_runs_own_cost(run_dir):
    with pytest.raises(DataError, match=r"no cost\.json"):
        compare.read(run_dir)
    cost = {"training_cpu_s": 300.0, "training_wall_s": 200.0, "cluster": {"cpu_s": 40.0, "wall_s": 20.0}}
    (run_dir / "cost.json").write_text(json.dumps(cost))
    assert compare.read(run_dir) == {"run": {"cpu_s": 340.0, "wall_s": 220.0}, "policies": {}}
