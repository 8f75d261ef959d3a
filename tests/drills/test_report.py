"""A campaign's report: what an interrupted one goes on from, and what people read."""

from pathlib import Path

import pytest

from rehearsal.drills import findings, report
from rehearsal.drills.campaign import FILE, Campaign
from rehearsal.drills.plan import Strike
from training import recipe
from training.errors import ConfigError
from training.files import write_json

RECIPE = recipe.load(Path(__file__).resolve().parents[2] / "recipes" / "maze-drill.toml")
PLAN = [[Strike("driver", "rollout", 2, 0.5)], [Strike("rank", "update", 3, 0.5)]]


def row(**changes) -> dict:
    return {
        "fault": "driver",
        "doing": "rollout 2",
        "detected_s": 2.04,
        "classified": "driver_lost",
        "rto_s": 41.0,
        "lost_steps": 0,
        "problems": [],
        **changes,
    }


def run(name: str, *strikes: dict, problems: tuple[str, ...] = ()) -> dict:
    return {
        "run": name,
        "seconds": 90.0,
        "identical": not problems,
        "comparison": "identical in all 12 steps, and in the adapter",
        "strikes": list(strikes),
        "problems": list(problems),
    }


def test_an_interrupted_campaign_goes_on_with_the_runs_that_are_not_in_its_report(tmp_path):
    folder = tmp_path / "one"
    campaign = Campaign(folder, RECIPE, 0, PLAN, {})
    assert campaign.left == [0, 1]
    write_json(folder / FILE, {**campaign.found, "runs": [run("one-1", row())]})
    assert Campaign(folder, RECIPE, 0, PLAN, {}).left == [1]


def test_another_campaign_does_not_go_on_in_its_folder(tmp_path):
    campaign = Campaign(tmp_path, RECIPE, 0, PLAN, {})
    write_json(tmp_path / FILE, campaign.found)
    with pytest.raises(ConfigError, match="is of another campaign: its seed, plan differ"):
        Campaign(tmp_path, RECIPE, 1, PLAN[:1], {})


def test_people_read_what_broke_and_how_long_each_kind_took():
    late = row(rto_s=63.0, detected_s=4.0, problems=["classified as code, not driver_lost"])
    runs = [run("one-1", row(), late, problems=("driver in rollout 2: classified as code",))]
    found = {"runs": runs, "summary": findings.summary(runs)}
    assert "broken: one-1: driver in rollout 2: classified as code" in report.lines(found)
    assert "| driver | 2 | driver_lost | 3, at most 4 | 52, at most 63 | 0 | 1 of 2 |" in report.markdown(
        found
    )
    assert [cells[-1] for cells in report.rows(found)] == ["yes", "no: classified as code, not driver_lost"]


def test_a_fault_that_nobody_noticed_has_no_times():
    runs = [run("one-1", row(detected_s=None, rto_s=None, classified=""), problems=("nothing was said",))]
    found = {"runs": runs, "summary": findings.summary(runs)}
    assert "| driver | 1 | - | - | - | 0 | 1 of 1 |" in report.markdown(found)
