"""Following a job: every event once, whatever becomes of the connection; the whole log only at the end."""

import asyncio
from types import SimpleNamespace

import pytest

from training import jobs
from training.errors import SubstrateError

AT = jobs.Endpoint("http://127.0.0.1:1", "secret")


def line(number: int) -> str:
    return f'@skypod {{"event": "step", "step": {number}}}\n'


class Job:
    """Ray's client for a job whose log comes over `connections`, each a list of pieces; None breaks off."""

    def __init__(self, connections: list[list[str | None]], log: str, last: str = "SUCCEEDED"):
        self.connections, self.log, self.last = list(connections), log, last
        self.logs_asked = 0
        self.ended = False

    def get_job_status(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(value=self.last if self.ended else "RUNNING")

    def get_job_info(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(message="done, last available logs (truncated to 20,000 chars):\n...")

    def get_job_logs(self, _: str) -> str:
        self.logs_asked += 1
        return self.log

    async def tail_job_logs(self, _: str):
        pieces = self.connections.pop(0) if self.connections else []
        for piece in pieces:
            await asyncio.sleep(0)
            if piece is None:
                raise RuntimeError("closed with 1006")
            yield piece
        self.ended = not self.connections


def follow(job: Job, monkeypatch, on_event=lambda event: None) -> jobs.Outcome:
    monkeypatch.setattr(jobs, "_client", lambda endpoint: job)
    return jobs.follow(AT, "run-1", on_event, poll_s=0.01)


def test_each_event_is_told_once_over_broken_connections_and_torn_lines(monkeypatch):
    one, two, three = line(1), line(2), line(3)
    job = Job(
        [[one, two[:9], None], [one + two[:4], two[4:]], [one, two, "noise\n" + three]],
        log=one + two + "noise\n" + three + line(4),
    )
    steps: list[int] = []
    outcome = follow(job, monkeypatch, lambda event: steps.append(event["step"]))
    assert steps == [1, 2, 3, 4]
    assert outcome == jobs.Outcome("SUCCEEDED", "done", job.log)
    assert job.logs_asked == 1


def test_a_failed_job_is_seen_although_its_log_is_silent(monkeypatch):
    job = Job([[]], log="", last="FAILED")
    assert follow(job, monkeypatch).status == "FAILED"


def test_a_dashboard_that_is_gone_is_said_to_be_gone(monkeypatch):
    job = Job([[None]] * 20, log="")
    with pytest.raises(SubstrateError, match=r"127\.0\.0\.1:1 stopped answering: closed with 1006"):
        follow(job, monkeypatch)


def test_a_log_that_always_ends_at_once_while_the_job_runs_is_given_up(monkeypatch):
    """When the head's agent has died the dashboard answers, and the job is never marked as ended."""
    job = Job([[]] * 20, log="")
    with pytest.raises(SubstrateError, match="broke off while it was RUNNING"):
        follow(job, monkeypatch)


def test_what_the_listener_raises_ends_the_following(monkeypatch):
    def refuse(event):
        raise BrokenPipeError(event["step"])

    job = Job([[line(7)], []], log="")
    with pytest.raises(BrokenPipeError, match="7"):
        follow(job, monkeypatch, refuse)
    assert job.connections == [[]]
