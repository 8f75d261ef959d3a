"""The whole rehearsal with the smoke recipe, as a user runs it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serving import aliases
from serving.rollout import record
from serving.rollout.site import ALIASES
from tests.kube.conftest import crds_dir
from tests.rehearsal.sockets import exposed, listening, processes
from training import exports, lineage, seal
from training.evaluate import read_records
from training.files import read_json
from training.metrics import METRICS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.emulator, pytest.mark.ray, pytest.mark.skyrl, pytest.mark.vllm]


HOSTILE = {
    "AWS_PROFILE": "nobody",
    "AWS_DEFAULT_REGION": "mars-1",
    "RAY_ADDRESS": "127.0.0.1:1",
    "RAY_API_SERVER_ADDRESS": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
}
"""What a user's shell may hold; none of it may reach a rehearsal."""


def start(run: str, *arguments: str) -> subprocess.Popen:
    shutil.rmtree(ROOT / "runs" / run, ignore_errors=True)
    command = [sys.executable, "-m", "cdk_app", "rehearse", "--recipe", "smoke", "--run", run, *arguments]
    if crds_dir():
        command += ["--crds", str(crds_dir())]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **HOSTILE},
    )


@pytest.fixture(scope="module")
def finished():
    """(output, sockets seen open to other machines, number of sockets seen) of one whole rehearsal."""
    run = f"test-smoke-{os.getpid()}"
    process = start(run)
    open_to_others, seen = set(), set()
    try:
        deadline = time.monotonic() + 900
        while process.poll() is None:
            assert time.monotonic() < deadline, "the smoke rehearsal took more than 15 minutes"
            open_to_others |= exposed(run)
            seen |= listening(run)
            time.sleep(1)
        output = process.stdout.read()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    assert process.returncode == 0, output
    yield run, output, open_to_others, seen
    shutil.rmtree(ROOT / "runs" / run, ignore_errors=True)


def test_it_says_what_it_did_and_leaves_no_process(finished):
    run, output, _, _ = finished
    for line in ("Deploy all stacks", "properties as set", "nothing is left", "served", "report.html"):
        assert line in output
    assert processes(run) == []


def test_nothing_listened_beyond_loopback(finished):
    _, _, open_to_others, seen = finished
    names = {name for name, _, _ in seen}
    assert {"raylet", "gcs_server"} <= names
    assert open_to_others == set()


def test_training_went_through_every_step_with_engine_and_trainer_agreeing(finished):
    folder = ROOT / "runs" / finished[0]
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(0 < step["logprob_gap_mean"] < 1e-4 for step in steps)
    assert all(step["grad_norm"] > 0 for step in steps)
    # The keys that SkyRL reports under are its own affair: here is where a missing one shows.
    assert METRICS.keys() <= steps[-1].keys()
    assert all(step["image_tokens_engine"] == step["image_tokens_trainer"] > 0 for step in steps)
    assert all(0 <= step["zero_variance_groups"] < 1 and step["reward_std_in_group"] > 0 for step in steps)


def test_the_published_64_were_played_three_times_and_served_equals_trained(finished):
    folder = ROOT / "runs" / finished[0]
    before, after, served = (
        read_records(folder / "evaluations" / f"{label}.jsonl") for label in ("baseline", "final", "served")
    )
    assert len(before) == len(after) == len(served) == 64
    assert {r.digest for r in before} == {r.digest for r in after} == {r.digest for r in served}
    trained = {r.key: (r.solved, r.actions) for r in after}
    assert {r.key: (r.solved, r.actions) for r in served} == trained


def test_the_adapter_has_an_effect_and_is_the_trainers(finished):
    probe = json.loads((ROOT / "runs" / finished[0] / "probe.json").read_text())
    assert probe["passed"]
    assert probe["shift"] > 1e-3
    assert probe["gap"] < 1e-4


def test_the_gate_decided_on_the_runs_own_evidence(finished):
    run, output, _, _ = finished
    decision = read_json(ROOT / "runs" / run / "gate.json")
    # Two steps cannot prove a gain on so few tasks; what matters is that the reasons are told.
    assert decision["decision"] == "refused"
    unmet = [condition["name"] for condition in decision["conditions"] if not condition["passed"]]
    assert unmet
    assert all(f"✗ {name}:" in output for name in unmet)


def test_what_the_gate_refused_is_served_and_not_promoted(finished):
    run, output, _, _ = finished
    assert "refused by its gate, so not live" in output
    state = ROOT / ".rehearsal" / "shared" / "serving" / run
    assert aliases.read(state / ALIASES).live is None
    (last,) = record.read_all(state)
    assert (last.outcome, last.failing.partition(":")[0]) == (record.REFUSED, "its gate refused it")
    assert set(last.steps) == {"validate"}


def test_the_manifest_names_everything_by_content(finished):
    folder = ROOT / "runs" / finished[0]
    manifest = lineage.read(folder)
    assert exports.digest(folder / manifest["adapter"]["folder"]) == manifest["adapter"]["digest"]
    assert manifest["serving"]["name"] == next((folder / "adapter").iterdir()).name
    sealed = {seal.label(when, split) for when in ("baseline", "final") for split in seal.SEALED}
    assert set(manifest["evaluations"]) == sealed | {"served", "dev-0000", "dev-0002"}
    plays = manifest["test_plays"]
    assert {play["label"] for play in plays} == sealed | {"served"}
    assert {play["candidate"] for play in plays if play["label"].startswith("baseline")} == {
        "base:" + manifest["base"]["digest"][:16]
    }
    assert {play["candidate"] for play in plays if not play["label"].startswith("baseline")} == {
        "adapter:" + manifest["adapter"]["digest"][:16]
    }
    assert [play["label"] for play in plays if play["again"]] == ["served"]
    assert [c["step"] for c in manifest["checkpoints"]] == [1, 2]
    assert manifest["attempts"][0]["libraries"]["skyrl"] == "0.4.0"


def test_report_and_timings_are_written(finished):
    folder = ROOT / "runs" / finished[0]
    page = (folder / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://127.0.0.1", "")
    timings = json.loads((folder / "timings.json").read_text())
    assert len(timings) >= 13
    assert all(entry["seconds"] >= 0 for entry in timings)
    spent = read_json(folder / "cost.json")
    assert min(spent["training_cpu_s"], spent["evaluation_cpu_s"], spent["cluster"]["cpu_s"]) > 1
    stage = next(entry["seconds"] for entry in timings if "train with SkyRL" in entry["stage"])
    assert spent["training_wall_s"] + spent["evaluation_wall_s"] == pytest.approx(stage, abs=3)


@pytest.mark.parametrize("phase", ["Deploy all stacks", "train with SkyRL"])
def test_an_interrupt_ends_everything(phase):
    run = f"test-interrupt-{os.getpid()}"
    process = start(run)
    try:
        for line in process.stdout:
            if line.startswith("...") and phase in line:
                break
        else:
            pytest.fail(f"it ended before {phase!r}")
        time.sleep(4)  # somewhere inside the phase: any moment must do
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(90) == 130
        assert "interrupted" in rest
        assert "had to kill" not in rest
        assert processes(run) == []
    finally:
        process.kill()
        shutil.rmtree(ROOT / "runs" / run, ignore_errors=True)


def test_a_killed_rehearsal_leaves_nothing_running_and_the_next_one_can_start():
    run = f"test-kill-{os.getpid()}"
    process = start(run)
    try:
        for line in process.stdout:
            if line.startswith("...") and "Bring up the Ray cluster" in line:
                break
        time.sleep(4)
        process.kill()
        process.wait(10)
        deadline = time.monotonic() + 45
        while processes(run) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert processes(run) == []
    finally:
        shutil.rmtree(ROOT / "runs" / run, ignore_errors=True)
