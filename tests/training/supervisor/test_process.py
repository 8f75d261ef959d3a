"""`python -m training.supervisor`: what its exit status and its last word say to the Job that runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stacks.manifests.supervisor import FINAL_EXITS
from tests.training.supervisor.world import ROOT
from training import lease, lineage
from training.events import parse

pytestmark = pytest.mark.slow
RECIPE = ROOT / "recipes" / "maze-smoke.toml"
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def shared(tmp_path) -> Path:
    base = tmp_path / "models" / "maze-tiny-smoke"
    base.mkdir(parents=True)
    (base / "config.json").write_text("{}")
    return tmp_path


def start(shared: Path, *more: str, recipe: Path = RECIPE) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "training.supervisor", str(shared / "runs" / "r")]
    command += ["--recipe", str(recipe), "--dashboard", NOBODY, *more]
    env = os.environ | {"SKYPOD_SHARED": str(shared)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env)


def refused(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=120)
    (event,) = [event for event in parse(out.splitlines()) if event["event"] == "refused"]
    return process.returncode, event["message"]


def test_it_makes_the_run_waits_for_the_cluster_and_hands_the_lease_back_when_it_is_drained(shared):
    process = start(shared)
    for line in process.stdout:
        if "does not answer" in line:
            break
    run_dir = shared / "runs" / "r"
    assert lineage.read(run_dir)["run"] == "r"
    assert lease.read(run_dir).holder

    second = start(shared)
    status, message = refused(second)
    assert status == 3
    assert message == f"run 'r' is supervised already, by {lease.read(run_dir).holder}"

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert lease.read(run_dir).holder == ""
    assert lineage.read(run_dir)["attempts"] == []


def test_what_a_person_has_to_correct_is_not_tried_again(shared, tmp_path):
    status, message = refused(start(shared, "--resume", "x"))
    assert (status, message) == (FINAL_EXITS[0], "there is no run 'r' to resume")

    wrong = tmp_path / "wrong.toml"
    wrong.write_text(RECIPE.read_text().replace("steps = 2", "stepps = 2", 1))
    status, message = refused(start(shared, recipe=wrong))
    assert status == FINAL_EXITS[0]
    assert "stepps" in message

    (shared / "models" / "maze-tiny-smoke" / "config.json").unlink()
    status, message = refused(start(shared))
    assert status == FINAL_EXITS[0]
    assert "there is no base model" in message


def test_a_run_that_is_given_up_says_so_by_its_status(shared, tmp_path):
    hasty = tmp_path / "hasty.toml"
    text = RECIPE.read_text()
    hasty.write_text(text.partition("[recovery]")[0] + "[recovery]\ntopology_timeout_s = 10\n")
    began = time.monotonic()
    status, message = refused(start(shared, recipe=hasty))
    assert status == FINAL_EXITS[1]
    assert message.startswith("no attempt could start for 10 s: the Ray dashboard at http://127.0.0.1:1")
    assert time.monotonic() - began > 10
    last = json.loads((shared / "runs" / "r" / "events.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["what"]) == ("supervisor", "given up")
