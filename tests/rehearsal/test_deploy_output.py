"""What the cdk command line prints becomes progress and readable errors."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rehearsal import deploy, stages
from training.errors import SubstrateError

FAILED = """
fail-one | 1/5 | 12:12:48 AM | CREATE_FAILED           | AWS::SageMaker::Cluster    | C no such subnet

Failed resources:
fail-one | 12:12:48 AM | CREATE_FAILED           | AWS::SageMaker::Cluster    | C no such subnet
❌  fail-one failed to deploy
‣ DeploymentError: Resource updates failed:
fail-one/C  (AWS::SageMaker::Cluster C)
  no such subnet
Source Location: ...jsii runtime, node internals...
                 (no user code in 10 frames, use --stack-trace-limit to capture more)

   CloudTrail delivery can lag up to 15 minutes behind the failure
"""


@pytest.mark.parametrize(
    ("line", "status", "stack"),
    [
        ("skypod-paper-network: deploying... [1/2]", "started", "skypod-paper-network"),
        ("skypod-paper-storage: destroying... [1/2]", "started", "skypod-paper-storage"),
        (" ✅  skypod-paper-network", "done", "skypod-paper-network"),
        ("✅  skypod-paper-network: destroyed", "done", "skypod-paper-network"),
        ("✅  skypod-paper-network (no changes)", "unchanged", "skypod-paper-network"),
        (" ❌  skypod-paper-network failed to deploy", "failed", "skypod-paper-network"),
        (
            "skypod-paper-eks |  3/36 | 12:10:41 AM | CREATE_COMPLETE | AWS::EKS::Cluster | Cluster",
            "progress",
            "skypod-paper-eks",
        ),
        (
            "skypod-paper-eks |  3 | 12:10:41 AM | DELETE_COMPLETE | AWS::EKS::Cluster | Cluster",
            "progress",
            "skypod-paper-eks",
        ),
    ],
)
def test_lines_become_events(line: str, status: str, stack: str):
    event = deploy._parse("deploy", line, 1.5)
    assert event is not None
    assert (event.status, event.stack, event.seconds) == (status, stack, 1.5)


@pytest.mark.parametrize(
    "line", ["", "✨  Synthesis time: 0.01s", " ✅  Environment aws://123456789012/us-west-2 bootstrapped."]
)
def test_other_lines_are_no_events(line: str):
    assert deploy._parse("deploy", line, 0.0) is None


def _pretend_cdk(root: Path, script: str) -> None:
    command = root / "node_modules" / ".bin" / "cdk"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)


def test_failure_carries_the_cause_and_drops_the_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "said.txt").write_text(FAILED)
    _pretend_cdk(tmp_path, "cat said.txt; exit 1")
    monkeypatch.setattr(deploy, "ROOT", tmp_path)
    events: list[deploy.Event] = []
    with pytest.raises(SubstrateError) as failed:
        deploy.deploy({}, [], events.append)
    assert "fail-one/C  (AWS::SageMaker::Cluster C)\n    no such subnet" in failed.value.problem
    assert "Source Location" not in failed.value.problem
    assert [event.status for event in events] == ["started", "progress", "failed", "failed"]


def test_missing_command_line_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deploy, "ROOT", tmp_path)
    with pytest.raises(SubstrateError, match="npm ci"):
        deploy.deploy({}, [], lambda event: None)


def test_diff_names_the_stacks_that_would_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said = "Stack one\nThere were no differences\nStack two\nResources\n[~] AWS::Budgets::Budget Monthly"
    (tmp_path / "said.txt").write_text(said)
    _pretend_cdk(tmp_path, "cat said.txt")
    monkeypatch.setattr(deploy, "ROOT", tmp_path)
    assert deploy.diff({}, [], lambda event: None) == ("two",)


def test_what_is_watched_ends_the_command_line_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The CLI would retry for a minute against an AWS that is gone, and its children with it."""
    _pretend_cdk(tmp_path, "sleep 60 & echo $! > child; echo working; sleep 60")
    monkeypatch.setattr(deploy, "ROOT", tmp_path)

    def gone() -> None:
        raise SubstrateError("the emulated AWS ended")

    began = time.monotonic()
    with pytest.raises(SubstrateError, match="the emulated AWS ended"):
        deploy.deploy({}, [], lambda event: None, gone)
    assert time.monotonic() - began < 15
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_interrupt_of_the_synth_does_not_wait_for_the_bootstrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def bootstrap(env, on_event, watch) -> None:
        for _ in range(400):
            watch()
            time.sleep(0.05)

    def synth(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(deploy, "bootstrap", bootstrap)
    monkeypatch.setattr(deploy, "synth", synth)
    parts = SimpleNamespace(aws=SimpleNamespace(env={}), require_alive=lambda: None)
    r = SimpleNamespace(substrate=parts, assembly=tmp_path / "cdk.out", environment_name="paper")
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        stages.deploy_stacks(r, SimpleNamespace())
    assert time.monotonic() - began < 5
