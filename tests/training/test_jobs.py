"""Following a job: every event once, whatever becomes of the connection; and what a dashboard may answer."""

import asyncio
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from types import SimpleNamespace
from typing import ClassVar

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


class Dashboard(BaseHTTPRequestHandler):
    """Answers from `answers`, {(method, path): (status, JSON value, or None for silence)}."""

    answers: ClassVar[dict] = {}
    asked: ClassVar[list] = []
    released: ClassVar[Event] = Event()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append(
            (self.command, self.path, self.headers.get("Authorization"), body and json.loads(body))
        )
        status, value = self.answers[self.command, self.path]
        if status is None:
            self.released.wait(30)
            return
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    do_GET = do_POST = answer

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def dashboard(monkeypatch):
    monkeypatch.setattr(Dashboard, "answers", {})
    monkeypatch.setattr(Dashboard, "asked", [])
    monkeypatch.setattr(Dashboard, "released", Event())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dashboard)
    Thread(target=server.serve_forever, daemon=True).start()
    yield Dashboard, jobs.Endpoint(f"http://127.0.0.1:{server.server_port}", "secret")
    Dashboard.released.set()
    server.shutdown()
    server.server_close()


def ray_job(name: str, run: str, status: str, code: int | None = None, at: int = 0) -> dict:
    message = "failed with exit code 1, last available logs (truncated to 20,000 chars):\nTraceback"
    return {
        "submission_id": name,
        "metadata": {"run": run},
        "status": status,
        "message": message,
        "driver_exit_code": code,
        "start_time": at,
    }


def test_a_job_is_submitted_under_the_number_of_its_attempt_or_the_first_that_is_free(dashboard):
    answers, at = dashboard
    answers.answers[("GET", "/api/jobs/")] = (200, [ray_job("r-1", "r", "FAILED"), {"submission_id": None}])
    answers.answers[("POST", "/api/jobs/")] = (200, {"submission_id": "r-2"})
    assert jobs.submit(at, run="r", entrypoint="true") == "r-2"
    jobs.submit(at, run="r", entrypoint="true", attempt=7)
    orders = [body for method, _, _, body in answers.asked if method == "POST"]
    assert [order["submission_id"] for order in orders] == ["r-2", "r-7"]
    assert orders[0]["metadata"] == {"run": "r"}
    assert {token for _, _, token, _ in answers.asked} == {"Bearer secret"}


def test_jobs_are_listed_by_age_without_their_logs(dashboard):
    answers, at = dashboard
    rows = [ray_job("r-2", "r", "RUNNING", at=2), ray_job("r-1", "r", "FAILED", 1, at=1)]
    answers.answers[("GET", "/api/jobs/")] = (200, rows)
    first, second = jobs.listing(at)
    assert (first.job, first.exit_code, first.ended, first.message) == (
        "r-1",
        1,
        True,
        "failed with exit code 1",
    )
    assert (second.job, second.exit_code, second.ended) == ("r-2", None, False)
    assert jobs.newest(at, "r") == "r-2"


def test_what_a_head_does_not_know_is_none_and_what_it_refuses_is_an_error(dashboard):
    answers, at = dashboard
    answers.answers[("GET", "/api/jobs/r-1")] = (404, "Job r-1 does not exist")
    assert jobs.find(at, "r-1") is None
    for status, remedy in ((401, "whether the token is that of this cluster"), (500, "log of the Ray head")):
        answers.answers[("GET", "/api/jobs/r-1")] = (status, "no")
        with pytest.raises(SubstrateError, match=f"answers {status}") as refused:
            jobs.find(at, "r-1")
        assert remedy in refused.value.remedy


def test_nodes_are_read_with_their_gpus_and_dead_ones_too(dashboard):
    answers, at = dashboard
    path = ("GET", "/api/v0/nodes?limit=1000")
    rows = [
        {"node_name": "head", "state": "ALIVE", "resources_total": {"CPU": 0}},
        {"node_name": "w", "state": "DEAD", "resources_total": {"GPU": 2.0}},
    ]
    answers.answers[path] = (200, {"data": {"result": {"result": rows}}})
    assert jobs.nodes(at) == [jobs.Node("head", True, 0), jobs.Node("w", False, 2)]
    answers.answers[path] = (200, {"result": False, "msg": "GCS is away", "data": {"result": None}})
    with pytest.raises(SubstrateError, match="cannot list its nodes: GCS is away"):
        jobs.nodes(at)


def test_a_dashboard_that_is_stopped_is_not_waited_for_without_end(dashboard, monkeypatch):
    answers, at = dashboard
    monkeypatch.setattr(jobs._ask, "__kwdefaults__", {"timeout_s": 0.2})
    answers.answers[("GET", "/api/jobs/r-1")] = (None, None)
    with pytest.raises(SubstrateError, match="does not answer: timed out"):
        jobs.find(at, "r-1")
