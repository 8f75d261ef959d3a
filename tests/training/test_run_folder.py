"""The run folder: prepared whole or not at all, its manifest, its events."""

import json
from pathlib import Path

import pytest

from training import events, lineage, prepare, recipe, splits
from training.errors import ConfigError, DataError
from training.metrics import METRICS, from_skyrl

SMOKE = Path(__file__).resolve().parents[2] / "recipes" / "maze-smoke.toml"


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def make(tmp_path, base):
    run = tmp_path / "runs" / "one"
    ceilings = prepare.prepare(recipe.load(SMOKE), run, base_dir=base, image="test", source=SMOKE)
    return run, ceilings


def test_a_prepared_run_holds_recipe_data_and_manifest(tmp_path, base):
    run, ceilings = make(tmp_path, base)
    manifest = lineage.read(run)
    assert manifest["run"] == "one"
    assert manifest["base"]["digest"]
    assert {
        name: len(splits.read(run / "data" / f"{name}.jsonl", digest))
        for name, digest in manifest["data"].items()
    } == {
        "train": 24,
        "dev": 16,
        "test": 64,
        "test-512": 16,
        "ood": 12,
    }
    assert recipe.read_resolved(run / "recipe.json") == recipe.load(SMOKE)
    assert (run / "recipe.toml").read_text() == SMOKE.read_text()
    assert ceilings["test"] == ceilings["train"] == 1.0


def test_a_run_that_exists_is_not_touched(tmp_path, base):
    run, _ = make(tmp_path, base)
    before = (run / "run.json").read_text()
    with pytest.raises(ConfigError, match="'one' exists already"):
        make(tmp_path, base)
    assert (run / "run.json").read_text() == before


def test_without_a_base_model_nothing_is_left_behind(tmp_path):
    with pytest.raises(DataError, match="no base model"):
        make(tmp_path, tmp_path / "nowhere")
    assert not (tmp_path / "runs").exists() or list((tmp_path / "runs").iterdir()) == []


def test_the_manifest_grows_by_sections(tmp_path, base):
    run, _ = make(tmp_path, base)
    lineage.append(run, "attempts", {"n": 1})
    lineage.append(run, "attempts", {"n": 2})
    records = tmp_path / "records.jsonl"
    records.write_text("{}\n")
    lineage.record_evaluation(run, "final", records, {"split": "test", "solved": 3})
    manifest = lineage.read(run)
    assert [a["n"] for a in manifest["attempts"]] == [1, 2]
    assert manifest["evaluations"]["final"]["solved"] == 3
    assert len(manifest["evaluations"]["final"]["records"]) == 64


def test_a_folder_without_manifest_is_no_run(tmp_path):
    with pytest.raises(DataError, match=r"holds no run\.json"):
        lineage.read(tmp_path)


def test_events_reach_the_file_and_the_log_of_the_job(tmp_path, capsys):
    log = events.EventLog(tmp_path / "events.jsonl")
    log.emit("step", step=1, reward=0.5)
    log.emit("finished")
    printed = capsys.readouterr().out
    noisy = "a worker says\n" + printed + "@skypod-not {}\n"
    assert [e["event"] for e in events.parse(noisy.split("\n"))] == ["step", "finished"]
    assert events.read(tmp_path / "events.jsonl") == list(events.parse(printed.split("\n")))


def test_an_event_that_is_being_written_is_not_read_yet(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps({"event": "a"}) + "\n" + '{"event": "b')
    assert events.read(path) == [{"event": "a"}]


def test_metrics_have_units_and_unique_sources():
    keys = [metric.skyrl_key for metric in METRICS.values()]
    assert len(keys) == len(set(keys))
    assert all(metric.unit and metric.meaning for metric in METRICS.values())


def test_skyrls_log_is_reduced_to_our_metrics():
    logs = {"environment/solved": 0.25, "timing/step": 3, "loss/unknown": 1.0, "policy/policy_loss": None}
    assert from_skyrl(logs) == {"train_solve_rate": 0.25, "step_seconds": 3.0}
