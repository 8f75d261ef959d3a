"""What a run cost: evaluation apart, attempts together, and the CPU time of the right processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rehearsal import cost
from rehearsal.substrate import MARK
from training.files import read_json

SAMPLES = [(100.0, 10.0), (110.0, 20.0), (120.0, 40.0)]


def event(moment: float, kind: str, label: str = "dev-0000") -> dict:
    return {"time": moment, "event": kind, "label": label}


@pytest.mark.parametrize(
    ("start", "end", "cpu"), [(100, 120, 30), (105, 115, 15), (0, 999, 30), (112, 112, 0)]
)
def test_cpu_time_between_two_moments(start, end, cpu):
    assert cost.between(SAMPLES, start, end) == pytest.approx(cpu)


def test_evaluation_is_told_apart_from_training():
    events = [
        event(90, "evaluating"),  # of an earlier attempt
        event(105, "evaluating"),
        event(107, "evaluating"),
        event(110, "evaluation"),
        event(112, "step"),
    ]
    assert cost.of_attempt(SAMPLES, events) == {
        "training_wall_s": 15.0,
        "training_cpu_s": 25.0,
        "evaluation_wall_s": 5.0,
        "evaluation_cpu_s": 5.0,
    }


def test_an_evaluation_that_was_cut_off_lasted_to_the_end():
    found = cost.of_attempt(SAMPLES, [event(110, "evaluating")])
    assert (found["evaluation_wall_s"], found["evaluation_cpu_s"]) == (10.0, 20.0)


def test_attempts_add_up_and_the_cluster_counts_once(tmp_path):
    cluster = {"wall_s": 20.0, "cpu_s": 30.0}
    for _ in range(2):
        cost.note(tmp_path, cost.of_attempt(SAMPLES, []), cluster)
    found = read_json(tmp_path / cost.FILE)
    assert (found["training_wall_s"], found["training_cpu_s"], found["cluster"]) == (40.0, 60.0, cluster)
    assert len(found["attempts"]) == 2


def test_only_marked_processes_of_the_training_environment_count(monkeypatch):
    """Each child burns 0.3 s of CPU time, the first one in a child of its own, and waits."""
    monkeypatch.setenv(MARK, "mine")
    home = "/somewhere/.venv-train"
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\n"
    stay = "print(flush=True)\ninput()\n"
    mine = {**os.environ, "VIRTUAL_ENV": home}
    programs = [(parent, mine), (burn, {**mine, MARK: "other"}), (burn, {**mine, "VIRTUAL_ENV": "/other"})]
    with cost.CpuWatch(Path(home) / "bin" / "python", interval_s=60) as watch:
        children = [
            subprocess.Popen(
                [sys.executable, "-c", code + stay], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for code, env in programs
        ]
        for child in children:
            child.stdout.readline()
        watch._sample()
        for child in children:
            child.communicate(b"\n")
    assert 0.3 <= watch.samples[1][1] - watch.samples[0][1] < 0.6
    assert watch.samples[-1][1] >= watch.samples[1][1]
    assert watch.samples[-1][0] <= time.time()
