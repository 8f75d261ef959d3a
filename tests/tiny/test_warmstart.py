import dataclasses
import json

import numpy as np
import pytest
import torch

from rehearsal.tiny import boards, demonstrators, habits, model, perception, warmstart
from rehearsal.tiny import play as board_play
from rehearsal.tiny.learn import Schedule
from training import splits
from training.audits import ancestry
from training.errors import ConfigError, DataError
from training.files import file_digest

SHORT = habits.Plan(mazes=40, acquire=Schedule(steps=4, rate=1e-3, warmup=2), games=2)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(habits, "QUICK", SHORT)


@pytest.fixture
def untrained(tmp_path):
    policy = model.initialize(5)
    _, taught = boards.learning("perception", 5, 40)
    record = {"seed": 5, "grades": {}, "plan": {"mazes": 40}, "taught": taught.digest}
    perception.save(policy, tmp_path / "stage1", record)
    return tmp_path / "stage1"


def test_the_shipped_stage_1_is_the_recorded_one_and_sees():
    policy, record = perception.load(perception.shipped())
    assert file_digest(perception.shipped() / perception.WEIGHTS) == record["weights_sha256"]
    played = board_play.play(policy, boards.patches(), boards.test(), boards.MAX_TURNS)
    assert played.solve_rate == record["grades"]["test_greedy"] >= 0.97
    assert played.well_formed == 1.0


def test_what_the_shipped_stage_1_was_taught_is_known_and_kept_clear_of_every_evaluation():
    """The digest was taken with the code that trained it, whose journal names the same rows."""
    _, record = perception.load(perception.shipped())
    body = perception.taught(record)
    assert len(body.prints) == 8000
    quarantined = splits.quarantine(boards.ENVIRONMENT)
    assert not quarantined & {one.same_layout_up_to_symmetry for one in body.prints}
    with pytest.raises(DataError, match="cannot be declared"):
        perception.taught(record | {"taught": "0" * 64})


def test_a_changed_stage_1_is_refused(untrained):
    weights = untrained / perception.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(DataError, match="has digest"):
        perception.load(untrained)
    with pytest.raises(DataError, match="no stage 1"):
        perception.load(untrained / "nowhere")


def test_a_warm_start_is_a_checkpoint_with_its_record(tmp_path, untrained, short):
    from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

    out = tmp_path / "start"
    record = warmstart.make(out, 3, stage1=str(untrained), quick=True)
    assert json.loads((out / warmstart.RECORD).read_text()) == json.loads(json.dumps(record))
    assert [entry["stage"] for entry in record["journal"]] == ["stage1", "habits-data", "habits", "grades"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stage1", "start"]
    declared = {body.name: body for body in ancestry.read(out).bodies}
    assert {name: len(body.prints) for name, body in declared.items()} == {"perception": 40, "habits": 40}
    assert all(body.symmetries and body.generator["seed"] in (3, 5) for body in declared.values())
    AutoProcessor.from_pretrained(out)
    loaded = Qwen3VLForConditionalGeneration.from_pretrained(out, dtype=torch.float32)
    seeing, _ = perception.load(untrained)
    vision = seeing.model.visual.state_dict()
    assert all(torch.equal(t, vision[name]) for name, t in loaded.model.visual.state_dict().items())
    assert not torch.equal(loaded.lm_head.weight, seeing.lm_head.weight)


def test_an_equal_warm_start_is_kept_and_another_refused(tmp_path, untrained, short):
    out = tmp_path / "start"
    record = warmstart.make(out, 3, stage1=str(untrained), quick=True)
    assert warmstart.make(out, 3, stage1=str(untrained), quick=True)["model_digest"] == record["model_digest"]
    with pytest.raises(ConfigError, match="another request"):
        warmstart.make(out, 4, stage1=str(untrained), quick=True)
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match="no warm start"):
        warmstart.make(tmp_path / "other", 3, stage1=str(untrained), quick=True)


def test_a_killed_warm_start_goes_on_and_ends_the_same(tmp_path, untrained, short, monkeypatch):
    whole = warmstart.make(tmp_path / "whole", 3, stage1=str(untrained), quick=True)
    monkeypatch.setattr(warmstart, "grades", lambda policy: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        warmstart.make(tmp_path / "killed", 3, stage1=str(untrained), quick=True)
    assert not (tmp_path / "killed").exists()
    with pytest.raises(ConfigError, match="unfinished"):
        warmstart.make(tmp_path / "killed", 4, stage1=str(untrained), quick=True)
    monkeypatch.undo()
    monkeypatch.setattr(habits, "QUICK", SHORT)
    resumed = warmstart.make(tmp_path / "killed", 3, stage1=str(untrained), quick=True)
    assert resumed["model_digest"] == whole["model_digest"]


def test_stage_1_appears_whole_with_its_record(tmp_path, monkeypatch):
    plan = dataclasses.replace(
        perception.Plan(),
        mazes=200,
        see=Schedule(steps=12, rate=2e-3, warmup=2),
        glance=Schedule(steps=2, rate=1e-3, warmup=1),
        pictures=32,
        read=Schedule(steps=2, rate=1e-3, warmup=1),
        games=2,
    )
    monkeypatch.setattr(perception, "Plan", lambda: plan)
    perception.make(tmp_path / "stage1", 0)
    policy, record = perception.load(tmp_path / "stage1")
    assert [path.name for path in tmp_path.iterdir()] == ["stage1"]
    assert [entry["stage"] for entry in record["journal"]] == ["perception-data", "see", "glance", "read"]
    assert record["grades"].keys() >= {"test_greedy", "dev_greedy"}
    fresh = model.initialize(0).model.visual.pos_embed.weight
    assert not torch.allclose(policy.model.visual.pos_embed.weight, fresh, atol=1e-3)


def test_what_to_see_marks_the_agent_and_tells_the_way_from_every_cell():
    board = boards.test().take(np.arange(5))
    ways, beelines, far, here = perception.what_to_see(board, board.start)
    assert (ways == board.flow).all()
    assert (beelines[:, 6] == demonstrators.beeline(board, np.full(5, 6))).all()
    assert ((far == 0) == (board.distance == 0)).all()
    assert far.max() == perception.FAR
    assert (here.argmax(1) == board.start).all()
    assert here.sum() == 5
