"""What a report says of a run's events: which promises were kept, and how long everything took."""

import pytest

from rehearsal.drills import findings
from rehearsal.drills.plan import Strike
from rehearsal.drills.run import Blow
from rehearsal.drills.watching import Seen, Watch, lengths
from training.events import EventLog


def seen(*told: tuple[float, str, dict]) -> list[Seen]:
    return [Seen(at, {"event": event, "attempt": 1, **fields}) for at, event, fields in told]


BEFORE = seen((1, "phase", {"name": "rollout", "step": 4}), (5, "checkpoint", {"step": 4}))
FAILED = seen((12, "supervisor", {"what": "failed", "message": "driver_lost: SIGKILL"}))


def after(*told: tuple[float, str, dict]) -> list[Seen]:
    return seen(*((at, event, {"attempt": 2, **fields}) for at, event, fields in told))


RESUMED = after(
    (40, "resumed", {"step": 4}), (41, "phase", {"name": "rollout", "step": 5}), (45, "step", {"step": 5})
)


def blow(fault: str = "driver") -> Blow:
    return Blow(Strike(fault, "rollout", 5, 0.5), 10.0, 1, "rollout 5", 4)


def test_a_kept_promise():
    row = findings.of_blow(blow(), BEFORE + FAILED + RESUMED)
    assert row["problems"] == []
    assert (row["detected_s"], row["rto_s"], row["lost_steps"], row["resumed_from"]) == (2.0, 35.0, 0, 4)
    assert row["classified"] == "driver_lost"


def test_a_finished_step_that_is_trained_again_is_lost():
    again = after((41, "phase", {"name": "rollout", "step": 4}), (45, "step", {"step": 4}))
    row = findings.of_blow(blow(), BEFORE + FAILED + again)
    assert row["lost_steps"] == 1
    assert row["problems"] == ["finished steps [4] were trained again"]


def test_a_damaged_checkpoint_may_cost_its_own_step_and_has_to_be_named():
    again = after((41, "phase", {"name": "rollout", "step": 4}), (45, "step", {"step": 4}))
    assert findings.of_blow(blow("flipped checkpoint"), BEFORE + FAILED + again)["problems"] == [
        "no checkpoint was passed over"
    ]
    told = after((40, "passed_over", {"message": "damaged"}))
    assert findings.of_blow(blow("flipped checkpoint"), BEFORE + FAILED + told + again)["problems"] == []


@pytest.mark.parametrize(
    ("told", "problems"),
    [
        ([], ["the supervisor said nothing of it", "no step, evaluation or end came after it"]),
        (FAILED, ["no step, evaluation or end came after it"]),
        (
            seen((12, "supervisor", {"what": "failed", "message": "code: ValueError"})) + RESUMED,
            ["classified as code, not driver_lost"],
        ),
    ],
)
def test_broken_promises(told, problems):
    assert findings.of_blow(blow(), BEFORE + told)["problems"] == problems


def test_a_supervisor_that_goes_on_costs_no_attempt():
    adopted = seen((16, "supervisor", {"what": "adopted", "message": "follows job one-1"}))
    row = findings.of_blow(blow("supervisor"), BEFORE + adopted)
    assert (row["classified"], row["rto_s"], row["problems"]) == (findings.NO_FAILURE, 6.0, [])


def test_phases_are_as_long_as_until_the_next_thing():
    told = seen(
        (0, "evaluating", {"label": "baseline", "finished": 0}),
        (1, "evaluating", {"label": "baseline", "finished": 3}),
        (4, "evaluation", {"label": "baseline"}),
        (5, "phase", {"name": "rollout", "step": 1}),
        (7, "phase", {"name": "update", "step": 1}),
        (8, "phase", {"name": "checkpoint", "step": 1}),
        (9, "phase", {"name": "rollout", "step": 2}),
        (15, "step", {"step": 2}),
    )
    assert lengths(told, 2) == {"evaluation": 4.0, "rollout": 4.0, "update": 1.0, "checkpoint": 1.0}


def test_a_watch_says_what_the_run_does_in_its_own_words(tmp_path):
    watch = Watch(tmp_path / "events.jsonl")
    assert (watch.doing, watch.attempt, watch.finished_step) == ("nothing yet", 0, 0)
    log = EventLog(tmp_path / "events.jsonl", attempt=3, to_stdout=False)
    log.emit("checkpoint", step=7)
    log.emit("phase", step=7, name="sync")
    log.emit("supervisor", what="adopted", message="")
    assert len(watch.look()) == 3
    assert (watch.doing, watch.attempt, watch.finished_step) == ("sync 7", 3, 7)
