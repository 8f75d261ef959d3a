"""What of a recipe may change in a run that is resumed."""

import pytest

from tests.training.supervisor.world import load, lost, success
from training import lineage, recipe
from training.errors import ConfigError
from training.supervisor import resume


def test_an_unchanged_recipe_needs_no_permission():
    assert resume.changes(load(), load()) == {}
    resume.require_allowed("r", {}, resumed=False)


@pytest.mark.parametrize(
    "key",
    [
        "optimization.steps",  # the schedule of the learning rate hangs on it
        "optimization.learning_rate",
        "seed",
        "data.train_mazes",
        "rollout.temperature",
        "policy.lora_rank",
        "gate.min_gain",
    ],
)
def test_what_would_make_another_run_is_refused_with_both_values(key):
    old = load()
    value = 0.5 if key.endswith(("rate", "temperature", "gain")) else 18
    new = load(**{key.replace(".", "__"): value, "recovery__max_attempts": 9})
    with pytest.raises(ConfigError) as refused:
        resume.require_allowed("r", resume.changes(old, new), resumed=True)
    assert f"{key}: " in refused.value.problem
    assert f"-> {value!r}" in refused.value.problem
    assert "recovery.max_attempts: 10 -> 9" in refused.value.problem
    assert f"under the old {key} would" in refused.value.problem
    assert "checkpoints" in refused.value.remedy


def test_a_changed_environment_option_is_found():
    found = resume.changes(load(), load(environment__options__squares_per_move=1))
    assert found == {"environment.options.squares_per_move": (2, 1)}


def test_a_run_that_is_submitted_twice_keeps_its_recipe():
    found = resume.changes(load(), load(recovery__max_attempts=9))
    with pytest.raises(ConfigError, match=r"exists already, with another recipe") as refused:
        resume.require_allowed("r", found, resumed=False)
    assert "skypod train resume r --recipe FILE" in refused.value.remedy


def test_a_run_that_is_submitted_twice_is_not_told_to_resume_what_no_resume_may_change():
    found = resume.changes(load(), load(seed=8, recovery__max_attempts=9))
    with pytest.raises(ConfigError, match=r"exists already, with another recipe") as refused:
        resume.require_allowed("r", found, resumed=False)
    assert refused.value.remedy == "choose another run id"


def test_allowed_changes_are_recorded_and_used(world):
    world.script = [lost(), lost(), lost(), success]
    assert world.supervise().outcome == "given up"
    changed = load(checkpoints__keep=5, recovery__max_hours=3.0)
    assert world.supervise(recipe=changed, resume="request-1").finished
    (request,) = lineage.read(world.run_dir)["resumes"]
    assert request["id"] == "request-1"
    kept = world.recipe.checkpoints.keep
    assert request["changes"] == {"checkpoints.keep": [kept, 5], "recovery.max_hours": [None, 3.0]}
    assert (request["attempts_before"], request["exact"]) == (3, True)
    assert lineage.read_recipe(world.run_dir) == changed
    assert recipe.read_resolved(world.run_dir / "recipe.json") == changed
    assert world.said("recipe changed") == [
        f"\n  checkpoints.keep: {kept} -> 5\n  recovery.max_hours: None -> 3.0"
    ]


def test_another_topology_is_allowed_and_said_to_be_inexact(world):
    world.script = [lost(), success]
    world.after(7, world.kill_worker, "worker-0")
    smaller = {"topology__worker_nodes": 2, "optimization__micro_batch_episodes": 6}
    assert world.supervise().outcome == "given up"
    assert world.supervise(recipe=load(**smaller), resume="smaller").finished
    assert lineage.read(world.run_dir)["resumes"][0]["exact"] is False


def test_attempts_are_counted_anew_when_a_person_resumes_but_not_when_a_supervisor_starts_again(world):
    world.script = [lost(), lost(), lost(), lost(), lost(), lost(), success]
    assert world.supervise(resume="one").outcome == "given up"
    assert len(world.attempts()) == 3
    # The same request again: its pod was replaced.
    assert world.supervise(resume="one").outcome == "given up"
    assert len(world.attempts()) == 3
    assert world.supervise(resume="two").outcome == "given up"
    assert len(world.attempts()) == 6
    assert world.supervise(resume="three").finished


def test_a_run_that_was_stopped_goes_on_when_a_person_resumes_it_and_only_then(world, monkeypatch):
    from tests.training.supervisor.test_supervise import die

    world.script = [lambda w, token: w.after(20, w.end, token, "STOPPED", None), success]
    die(world, monkeypatch)
    world.wait(10)
    assert world.supervise(resume="go on").finished
    assert [row["outcome"] for row in world.attempts()] == ["stopped", "finished"]


def test_a_run_that_was_stopped_stays_so_when_its_supervisor_is_started_again(world, monkeypatch):
    from tests.training.supervisor.test_supervise import die

    world.script = [lambda w, token: w.after(20, w.end, token, "STOPPED", None), success]
    die(world, monkeypatch)
    world.wait(10)
    assert world.supervise().outcome == "stopped"
    assert world.supervise().outcome == "given up"


def test_a_job_of_the_old_recipe_is_replaced_not_adopted(world, monkeypatch):
    from tests.training.supervisor.test_supervise import die

    world.script = [lambda w, token: None, success]
    die(world, monkeypatch)
    assert world.supervise(recipe=load(checkpoints__keep=7), resume="more").finished
    assert [row["outcome"] for row in world.attempts()] == ["stopped", "finished"]
    assert set(world.asked_to_stop) == {world.job_id(1)}
