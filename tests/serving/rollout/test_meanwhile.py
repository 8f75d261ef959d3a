"""What other people, programs and machines do while a promotion or a rollback goes on."""

import threading
from dataclasses import replace

import pytest

from serving import aliases
from serving.aliases import ReplacedError
from serving.rollout import record as records
from serving.rollout import rollback
from serving.rollout.promote import promote
from serving.rollout.record import LIVE, REPLACED
from serving.rollout.rollback import roll_back
from serving.rollout.watch import look
from tests.serving.rollout.conftest import MAZES, cut_off, make_questions
from tests.serving.rollout.engine import MODEL_ID
from training.errors import ConfigError, DataError, SubstrateError


def stand(site):
    found = aliases.read(site.aliases)
    return found.live, found.canary, found.previous


class Killed(BaseException):
    pass


@pytest.fixture
def three(site, candidate):
    """One live, one before it, and one to come."""
    made = [candidate(seed) for seed in (1, 2, 3)]
    for one in made[:2]:
        promote(site, one)
    return made


def leave_canary(site, one, monkeypatch):
    """A promotion that is killed while its canary has traffic."""

    def kill(*_):
        raise Killed

    with monkeypatch.context() as context:
        context.setattr("serving.rollout.promote._Promotion._suspend", lambda self: None)
        context.setattr(type(site.traffic), "watch", kill)
        with pytest.raises(Killed):
            promote(site, one)


def test_a_gate_that_has_refused_since_stops_a_promotion_that_goes_on(site, engine, three, candidate):
    _, live, one = three

    cut_off(site, one, "canary")
    with pytest.raises(DataError, match="its gate refused it: 1 condition unmet"):
        promote(site, replace(one, refused="1 condition unmet"))
    assert stand(site)[:2] == (live.name, None)
    assert site.registry.version(one.base.digest, one.name).status == "Rejected"


def test_of_two_rollbacks_at_once_one_ends_the_canary_and_the_other_takes_nothing_else(
    site, three, monkeypatch
):
    _, live, canary = three
    leave_canary(site, canary, monkeypatch)
    both, load, first = threading.Barrier(2), rollback._load, threading.local()

    def together(*args, **options):
        load(*args, **options)
        if not hasattr(first, "met"):
            first.met = True
            both.wait(30)

    monkeypatch.setattr(rollback, "_load", together)
    ends = []

    def take_back():
        try:
            ends.append(roll_back(site).adapter)
        except ReplacedError as error:
            ends.append(error.problem)

    threads = [threading.Thread(target=take_back) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stand(site)[:2] == (live.name, None)
    told = f"{canary.name} was taken back, but not by this rollback: {live.name} is in its place"
    assert sorted(ends, key=len) == [canary.name, told]


def test_the_timer_takes_back_what_failed_its_probe_and_not_what_came_after(site, engine, three, monkeypatch):
    _, failing, newer = three
    engine.logprobs[failing.name] = -2.0
    load, once = rollback._load, [True]

    def meanwhile(*args, **options):
        if once.pop() if once else False:
            engine.logprobs.clear()
            promote(site, newer)
        load(*args, **options)

    monkeypatch.setattr(rollback, "_load", meanwhile)
    assert look(site, lambda name: make_questions()) is None
    assert stand(site) == (newer.name, None, failing.name)


def test_a_rollback_to_what_is_live_ends_the_canary(site, three, monkeypatch):
    first, live, canary = three
    leave_canary(site, canary, monkeypatch)
    assert roll_back(site, to=live.name).adapter == canary.name
    assert stand(site) == (live.name, None, first.name)


def test_a_rollback_to_the_base_ends_a_first_canary(site, candidate, monkeypatch):
    one = candidate(1)
    leave_canary(site, one, monkeypatch)
    assert roll_back(site, to="base").adapter == one.name
    assert stand(site) == (None, None, None)


def test_a_canary_ends_although_the_engine_refuses_what_is_live(site, engine, three, said, monkeypatch):
    _, live, canary = three
    leave_canary(site, canary, monkeypatch)
    engine.models.pop(f"{MODEL_ID}:{live.name}")
    engine.refuses.add(live.name)
    roll_back(site)
    assert stand(site)[:2] == (live.name, None)
    assert any(f"{live.name} could not be loaded" in line for line in said)


def test_a_rollback_does_not_serve_what_was_changed_on_disk(site, engine, three):
    before, live, _ = three
    engine.crash()
    engine.start_again()
    path = site.folder(before.name) / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(DataError, match="has digest"):
        roll_back(site)
    assert stand(site)[0] == live.name
    assert before.name not in engine.paths


def test_a_rollback_to_what_was_rejected_says_so(site, three, said):
    before, _, _ = three
    site.registry.sagemaker.update_model_package(
        ModelPackageArn=site.registry.version(before.base.digest, before.name).arn,
        ModelApprovalStatus="Rejected",
        CustomerMetadataProperties={"adapter": before.name},
    )
    roll_back(site)
    assert stand(site)[0] == before.name
    assert any(f"{before.name} is Rejected" in line for line in said)


def test_promoting_what_is_live_gives_a_restarted_engine_its_adapters_back(site, engine, three):
    before, live, _ = three
    engine.crash()
    engine.start_again()
    assert promote(site, live).outcome == LIVE
    assert {f"{MODEL_ID}:{one.name}" for one in (before, live)} <= set(engine.models)


@pytest.mark.parametrize("error", [DataError, SubstrateError])
def test_what_cannot_be_unloaded_stays_loaded_and_changes_no_verdict(site, three, said, monkeypatch, error):
    before, live, one = three

    def stuck(name):
        raise error("the stack update was rolled back", "see its events")

    monkeypatch.setattr(site.destination, "unload", stuck)
    assert promote(site, one).outcome == LIVE
    assert roll_back(site).known.live == live.name
    assert f"{before.name} stays loaded: the stack update was rolled back" in said


def test_other_tasks_are_no_verdict_against_a_promotion_that_goes_on(site, three, candidate):
    one = three[2]

    cut_off(site, one, "canary")
    other = replace(one, questions=replace(one.questions, tasks=MAZES[:4]))
    with pytest.raises(ConfigError, match="that was cut off played other tasks than these"):
        promote(site, other)
    assert records.newest(site.state).outcome == ""
    assert promote(site, one).outcome == LIVE


def test_a_promotion_that_was_taken_back_ends_before_its_period(site, three):
    """Without a gateway the questions end; with one the wait does (test_traffic)."""
    one, asked = three[2], []
    site.rules = replace(site.rules, requests=1000)

    def tell(step):
        if step == "judge":
            asked.append(roll_back(replace(site, tell=lambda said: None)).adapter)

    site.tell = tell
    with pytest.raises(ReplacedError):
        promote(site, one)
    assert asked == [one.name]
    assert records.newest(site.state).outcome in (REPLACED, "rolled back")


def test_a_look_without_a_record_or_without_its_run_takes_nothing_back(site, three, said):
    live = three[1]

    def questions(name):
        raise ConfigError(f"no rollout of {name} is on record", "promote it")

    assert look(site, questions) is None
    assert stand(site)[0] == live.name
    assert said[-1] == f"{live.name} was not probed: no rollout of {live.name} is on record"


def test_an_engine_that_loads_nothing_is_no_reason_to_take_anything_back(site, three, said, monkeypatch):
    live = three[1]

    def fixed(folder):
        raise ConfigError("it loads no adapters while it runs", "start it otherwise")

    monkeypatch.setattr(site.destination, "load", fixed)
    monkeypatch.setattr(site.destination, "loaded", lambda: set())
    assert look(site, lambda name: make_questions()) is None
    assert stand(site)[0] == live.name
