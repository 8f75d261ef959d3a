"""A run is seen through failures of every class, by the decisions of a clock that only waiting moves."""

import errno
import json

import pytest

from tests.training.supervisor.world import LOST, World, failure, lost, success
from training import attempts, events, lease, lineage
from training.errors import ConfigError, SubstrateError
from training.jobs import Job
from training.lease import FencedError
from training.supervisor import record as recording


def test_a_run_that_succeeds_is_one_attempt_with_all_that_is_known_of_it(world):
    world.script = [success]
    assert world.supervise().finished
    (row,) = world.attempts()
    assert row["attempt"] == row["token"] == 1
    assert row["job"] == f"{world.run_dir.name}-1"
    assert (row["outcome"], row["from_step"], row["to_step"]) == ("finished", 0, 2)
    assert row["seconds"] == pytest.approx(20, abs=2)
    assert row["started"]
    assert row["ended"]
    assert [e["event"] for e in world.shown] == ["supervisor", "checkpoint", "finished", "supervisor"]
    assert lease.read(world.run_dir).holder == ""


def test_a_lost_node_is_waited_for_and_the_run_goes_on(world):
    def lose(world: World, token: int) -> None:
        world.after(5, world.checkpoint, token, 1)
        world.after(8, world.kill_worker, "worker-1")
        world.after(9, world.fail, token, "RuntimeError: Connection closed by peer")
        world.after(100, world.workers.__setitem__, "worker-1b", world.workers["worker-0"])

    world.script = [lose, success]
    assert world.supervise().finished
    first, second = world.attempts()
    assert (first["outcome"], first["failure"]) == ("failed", "node_lost")
    assert (first["from_step"], first["to_step"]) == (0, 1)
    assert (second["from_step"], second["dead_before"]) == (1, ["worker-1"])
    assert world.submitted_at[1] - world.submitted_at[0] >= 100
    assert "2 of 3 workers with 2 GPUs are alive" in world.said("waiting")
    assert (world.run_dir / "logs" / "attempt-1.log").read_text() == f"log of {world.run_dir.name}-1"


def test_a_node_that_died_before_an_attempt_does_not_excuse_what_fails_in_it(world):
    world.kill_worker("worker-1")
    world.workers["worker-1b"] = world.workers["worker-0"]
    world.script = [failure("ValueError: wrong", "builtins.ValueError")]
    verdict = world.supervise()
    assert world.attempts()[0]["failure"] == "code"
    assert verdict.outcome == "given up"


@pytest.mark.parametrize(
    ("kind", "script"),
    [
        ("code", failure("ValueError: wrong", "builtins.ValueError")),
        ("data", failure("DataError: torn", "training.errors.DataError", "training.errors.SkypodError")),
    ],
)
def test_what_another_attempt_cannot_change_is_not_tried_again(world, kind, script):
    world.script = [script]
    verdict = world.supervise()
    assert (verdict.outcome, len(world.attempts())) == ("given up", 1)
    assert kind in verdict.problem
    assert verdict.remedy
    assert world.said("given up") == [verdict.problem]


def test_the_remedy_of_our_own_error_is_passed_on(world):
    world.script = [failure("DataError: torn", "training.errors.SkypodError", remedy="make it anew")]
    assert world.supervise().remedy == "make it anew"


def test_a_silent_driver_is_stopped_and_replaced(world):
    def hang(world: World, token: int) -> None:
        world.after(50, world.emit, token, "step", step=1)

    world.script = [hang, success]
    assert world.supervise().finished
    assert world.asked_to_stop == [f"{world.run_dir.name}-1"]
    row = world.attempts()[0]
    assert (row["failure"], row["outcome"]) == ("stalled", "failed")
    assert row["seconds"] == pytest.approx(50 + 300, abs=5)


def test_neither_the_supervisor_nor_an_older_driver_counts_as_a_sign_of_life(world):
    def hang(world: World, token: int) -> None:
        for second in range(10, 2000, 10):
            world.after(second, world.emit, token, "supervisor", what="waiting")
            world.after(second, world.emit, token - 1, "step", step=1)

    world.script = [lost(1), hang, success]
    assert world.supervise().finished
    assert [row.get("failure") for row in world.attempts()] == ["node_lost", "stalled", None]


def test_a_job_that_does_not_stop_is_left_to_the_fence(world):
    def hang(world: World, token: int) -> None:
        world.stubborn = True
        world.after(400, setattr, world, "stubborn", False)

    world.script = [hang, success]
    assert world.supervise().finished
    # It is asked again before the next attempt, and none starts beside it.
    assert world.asked_to_stop.count(f"{world.run_dir.name}-1") > 1
    assert lease.read(world.run_dir).token == 2
    with pytest.raises(FencedError), lease.held(world.run_dir, 1):
        pass


def test_a_driver_that_vanishes_without_a_word_is_replaced(world):
    world.script = [lambda w, token: w.after(5, w.end, token, "FAILED", -9), success]
    assert world.supervise().finished
    row = world.attempts()[0]
    assert row["failure"] == "driver_lost"
    assert "SIGKILL" in row["message"]


def test_a_driver_whose_last_word_found_no_room_on_the_disk_is_read_from_its_log(world):
    event = {
        "time": 1,
        "event": "failed",
        "attempt": 1,
        "message": "OSError: full",
        "types": [],
        "errnos": ["ENOSPC"],
    }
    world.log = lambda job: f"noise\n@skypod {json.dumps(event)}\n"
    world.script = [lambda w, token: w.after(5, w.end, token, "FAILED", 1), success]
    assert world.supervise().finished
    assert world.attempts()[0]["failure"] == "storage"


def test_a_new_head_does_not_know_the_job(world):
    def lose(world: World, token: int) -> None:
        world.after(5, setattr, world, "answers", False)
        world.after(15, world.new_head)

    world.script = [lose, success]
    assert world.supervise().finished
    row = world.attempts()[0]
    assert (row["failure"], "new one" in row["message"]) == ("head_lost", True)


def test_a_head_that_is_gone_is_waited_for(world):
    def lose(world: World, token: int) -> None:
        world.after(5, setattr, world, "answers", False)
        world.after(200, world.new_head)

    world.script = [lose, success]
    assert world.supervise().finished
    assert world.attempts()[0]["failure"] == "head_lost"
    assert world.attempts()[0]["seconds"] < 40


def test_as_long_as_the_driver_is_heard_a_silent_dashboard_is_no_loss(world):
    def go_on(world: World, token: int) -> None:
        world.after(1, setattr, world, "answers", False)
        for second in range(10, 200, 10):
            world.after(second, world.emit, token, "step", step=second)
        world.after(195, setattr, world, "answers", True)
        world.after(200, world.finish, token)

    world.script = [go_on]
    assert world.supervise().finished
    assert len(world.attempts()) == 1


def test_a_head_that_was_cut_off_and_comes_back_ends_its_old_job_before_the_next(world):
    def cut(world: World, token: int) -> None:
        world.after(1, setattr, world, "answers", False)
        world.after(60, setattr, world, "answers", True)

    world.script = [cut, success]
    assert world.supervise().finished
    assert set(world.asked_to_stop) == {f"{world.run_dir.name}-1"}
    assert world.jobs[f"{world.run_dir.name}-1"].status == "STOPPED"


def test_a_driver_that_published_its_adapter_has_finished_whatever_ended_it(world):
    def crash_late(world: World, token: int) -> None:
        world.after(5, lineage.update, world.run_dir, finished="now")
        world.after(6, world.end, token, "FAILED", -11)

    world.script = [crash_late]
    assert world.supervise().finished
    assert world.attempts()[0]["outcome"] == "finished"


def test_a_driver_that_ends_well_without_an_adapter_has_failed(world):
    world.script = [lambda w, token: w.after(5, w.end, token, "SUCCEEDED", 0)]
    assert world.supervise().outcome == "given up"
    assert world.attempts()[0]["failure"] == "code"


def test_a_job_that_somebody_stops_is_not_started_again(world):
    world.script = [lambda w, token: w.after(5, w.end, token, "STOPPED", None)]
    verdict = world.supervise()
    assert verdict.outcome == "stopped"
    assert world.attempts()[0]["outcome"] == "stopped"


def test_waits_double_until_there_is_progress(world):
    world.begin_with(recovery__max_fruitless_attempts=9)
    full = {"errnos": ["ENOSPC"]}
    world.script = [
        *[failure("OSError: full", **full) for _ in range(3)],
        failure("OSError: full", step=1, **full),
        failure("OSError: full", **full),
        success,
    ]
    assert world.supervise().finished
    gaps = [
        later - earlier for earlier, later in zip(world.submitted_at, world.submitted_at[1:], strict=False)
    ]
    waits = [round(gap - 5, -1) for gap in gaps]
    assert waits == [20, 40, 60, 10, 20]


def test_a_lost_node_is_given_the_time_that_ray_takes_to_call_it_dead(world):
    world.script = [lost(step=1), success]
    assert world.supervise().finished
    first, second = world.submitted_at
    assert second - first >= 5 + 15


def test_a_crash_loop_ends_with_its_cause(world):
    world.script = [lost(step=1), lost(), lost(), lost(), success]
    verdict = world.supervise()
    assert len(world.attempts()) == 4
    assert "3 attempts in a row wrote no checkpoint" in verdict.problem
    assert LOST[0] in verdict.problem


def test_attempts_are_limited_even_with_progress(world):
    world.script = [lost(step=n) for n in range(1, 20)]
    verdict = world.supervise()
    assert len(world.attempts()) == 10
    assert "all 10 attempts are used up" in verdict.problem


def test_a_budget_of_hours_stops_the_job(world):
    world.begin_with(recovery__max_hours=0.1, recovery__stall_s=3000)
    world.script = [lambda w, token: None]
    verdict = world.supervise()
    assert "recovery.max_hours is 0.1" in verdict.problem
    assert world.asked_to_stop
    (row,) = world.attempts()
    assert row["outcome"] == "stopped"
    assert row["seconds"] == pytest.approx(360, abs=40)


def test_a_budget_of_money_counts_waiting_and_earlier_supervisors(world):
    world.begin_with(recovery__max_usd=1.0, recovery__stall_s=3000)
    with pytest.raises(ConfigError, match="max_usd = 1 needs a price"):
        world.supervise()
    lease.take(world.run_dir, "earlier", 0)
    lease.renew(world.run_dir, "earlier", 30.0)
    lease.release(world.run_dir, "earlier")
    world.kill_worker("worker-0")
    verdict = world.supervise(usd_per_hour=36.0)
    assert "has cost 1.0" in verdict.problem
    assert world.now == pytest.approx(5000 + 70, abs=3)


@pytest.mark.parametrize("price", [float("nan"), float("inf"), -1.0])
def test_what_is_no_price_is_refused_before_anything_is_begun(world, price):
    world.begin_with(recovery__max_usd=1.0)
    with pytest.raises(ConfigError, match="is no price"):
        world.supervise(usd_per_hour=price)
    assert world.attempts() == []


def test_a_topology_that_never_is_whole_is_given_up_with_what_is_missing(world):
    world.kill_worker("worker-0")
    verdict = world.supervise()
    assert "no attempt could start for 600 s: 2 of 3 workers" in verdict.problem
    assert world.attempts() == []


def test_nodes_with_too_few_gpus_do_not_count(world):
    world.workers = {name: node.__class__(name, True, 1) for name, node in world.workers.items()}
    assert "0 of 3 workers with 2 GPUs" in world.supervise().problem


def test_a_submission_whose_answer_was_lost_is_not_made_twice(world):
    whole = world.submit

    def submit(token: int) -> None:
        whole(token)
        raise SubstrateError("timed out", "")

    world.submit = submit
    world.script = [success]
    assert world.supervise().finished
    assert len(world.submitted_at) == len(world.attempts()) == 1


def test_a_job_whose_submission_was_not_heard_of_is_stopped_when_the_run_is_given_up(world):
    whole = world.submit

    def submit(token: int) -> None:
        whole(token)
        world.kill_worker("worker-0")
        raise SubstrateError("timed out", "")

    world.submit = submit
    assert "no attempt could start for 600 s: 2 of 3 workers" in world.supervise().problem
    assert world.jobs[world.job_id(1)].status == "STOPPED"
    assert [row["outcome"] for row in world.attempts()] == ["stopped"]


def test_a_job_of_an_earlier_run_with_this_name_is_not_taken_for_ours(world):
    world.jobs[world.job_id(1)] = Job(world.job_id(1), world.run_dir.name, "SUCCEEDED", "", 0)
    world.script = [success]
    assert world.supervise().finished
    assert [row["token"] for row in world.attempts()] == [2]


def test_a_full_disk_delays_what_the_supervisor_writes_and_fails_nothing(world, monkeypatch):
    real = attempts.note
    full = []

    def note(*args, **facts):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*args, **facts)

    monkeypatch.setattr(recording.attempts, "note", note)

    def fill(world: World, token: int) -> None:
        world.after(3, full.append, True)
        world.after(5, world.fail, token, "OSError: full", (), errnos=["ENOSPC"])
        world.after(12, full.clear)

    world.script = [fill, success]
    assert world.supervise().finished
    first, second = world.attempts()
    assert (first["failure"], second["outcome"]) == ("storage", "finished")


def test_a_run_that_is_finished_is_left_alone(world):
    lineage.update(world.run_dir, finished="now")
    assert world.supervise().finished
    assert world.submitted_at == []


# Supervisors that die, hang and come back


class Killed(BaseException):
    """As SIGKILL: nothing is cleaned up."""


def die(world: World, monkeypatch) -> None:
    """Supervise until the supervisor is killed in the 15th second."""

    def kill():
        raise Killed

    monkeypatch.setattr(lease, "release", lambda *_: None)
    world.after(15, kill)
    with pytest.raises(Killed):
        world.supervise()
    monkeypatch.undo()


def test_a_killed_supervisors_job_is_adopted_with_its_token(world, monkeypatch):
    def work(world: World, token: int) -> None:
        world.after(10, world.checkpoint, token, 1)
        world.after(100, world.finish, token)

    world.script = [work]
    die(world, monkeypatch)
    assert "ended" not in world.attempts()[0]
    before = world.now
    assert world.supervise().finished
    (row,) = world.attempts()
    assert row["outcome"] == "finished"
    assert row["seconds"] > 15
    assert world.said("adopted")
    assert world.now - before >= 30
    assert lease.read(world.run_dir).token == 1


def test_what_became_of_a_job_while_nobody_supervised_is_found_out(world, monkeypatch):
    world.script = [failure("ValueError: wrong", "builtins.ValueError", at=20)]
    die(world, monkeypatch)
    assert world.supervise().outcome == "given up"
    assert world.attempts()[0]["failure"] == "code"

    fresh = World(world.run_dir)
    lineage.update(world.run_dir, attempts=[])
    fresh.script = [success]
    assert fresh.supervise(resume="again").finished


def test_a_job_that_went_with_its_head_meanwhile_is_replaced(world, monkeypatch):
    world.script = [lambda w, token: w.after(20, w.new_head), success]
    die(world, monkeypatch)
    assert world.supervise().finished
    assert [row.get("failure") for row in world.attempts()] == ["head_lost", None]


def test_a_second_supervisor_is_refused_while_the_first_lives(world):
    refused = []

    def challenge() -> None:
        def wait(seconds: float) -> None:
            lease.renew(world.run_dir, lease.read(world.run_dir).holder, 0.0)

        with pytest.raises(SubstrateError, match="is supervised already") as error:
            lease.take(world.run_dir, "second", 30, world.clock, wait)
        refused.append(error)

    world.script = [success]
    world.after(5, challenge)
    assert world.supervise().finished
    assert len(refused) == 1
    assert len(world.attempts()) == 1


def test_a_supervisor_that_was_replaced_while_it_was_stopped_stops_without_a_trace(world):
    """SIGSTOP for longer than the patience, another takes over, SIGCONT."""
    left = {}

    def replace() -> None:
        lease.take(world.run_dir, "another", 0)
        lease.next_token(world.run_dir, "another")
        left.update(manifest=(world.run_dir / "run.json").read_bytes())

    world.script = [lambda w, token: w.after(5, replace)]
    with pytest.raises(FencedError, match="taken over by another"):
        world.supervise()
    assert (world.run_dir / "run.json").read_bytes() == left["manifest"]
    assert lease.read(world.run_dir).holder == "another"
    assert world.asked_to_stop == []


def test_wall_clocks_are_never_asked(world, monkeypatch):
    """Days forward and back between any two looks change no decision."""
    jumps = iter(range(10**9, 10**10))
    monkeypatch.setattr("time.time", lambda: (-1) ** next(jumps) * 86400.0 * next(jumps))
    world.script = [lost(step=1), success]
    assert world.supervise().finished
    assert world.now - 5000 < 60
    assert [event["event"] for event in events.read(world.run_dir / "events.jsonl")].count("checkpoint") == 2
