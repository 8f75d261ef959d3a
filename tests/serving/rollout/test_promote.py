"""Promotions against a scripted engine over HTTP and a mocked registry: to the end, refused at each step, cut
off at each step, and taken back."""

import json

import pytest
from botocore.exceptions import EndpointConnectionError

from serving import aliases
from serving.registry import REJECTED
from serving.rollout import record as records
from serving.rollout.promote import STEPS, promote
from serving.rollout.record import LIVE, REFUSED, REPLACED, ROLLED_BACK
from serving.rollout.rollback import roll_back
from tests.serving.rollout.conftest import MAZES, cut_off
from tests.serving.rollout.engine import MODEL_ID, losing
from tests.serving.scripted_server import oracle
from training.errors import ConfigError, DataError, SubstrateError


def stand(site):
    found = aliases.read(site.aliases)
    return found.live, found.canary, found.canary_share, found.previous


def models(engine):
    return {name.partition(":")[2] for name in engine.models} - {""}


def test_an_adapter_is_promoted_step_by_step_and_the_one_before_is_kept(site, engine, candidate, said):
    first, second, third = candidate(1), candidate(2), candidate(3)
    engine.plays[first.name] = losing(oracle(MAZES), MAZES, 2)
    record = promote(site, first)
    assert said[: len(STEPS)] == list(STEPS)
    assert (record.outcome, list(STEPS) == sorted(record.steps, key=STEPS.index)) == (LIVE, True)
    assert stand(site) == (first.name, None, 0.0, None)
    assert record.steps["canary"]["share"] == 1.0
    record = promote(site, second)
    assert record.steps["canary"]["share"] == 0.1
    assert (record.steps["play"]["won"], record.steps["play"]["lost"]) == (2, 0)
    assert record.steps["probe"]["passed"] is True
    assert stand(site) == (second.name, None, 0.0, first.name)
    assert engine.unloaded == []
    promote(site, third)
    assert stand(site) == (third.name, None, 0.0, second.name)
    assert (engine.unloaded, models(engine)) == ([first.name], {second.name, third.name})
    versions = site.registry.versions(first.base.digest)
    assert {one.adapter: one.alias for one in versions} == {
        first.name: "",
        second.name: "previous",
        third.name: "live",
    }
    assert aliases.read(site.aliases).version == 6
    promote(site, third)
    assert (said[-1], aliases.read(site.aliases).version) == (f"{third.name} is live already", 6)


def test_what_was_live_before_may_come_back(site, engine, candidate):
    first, second = candidate(1), candidate(2)
    for one in (first, second, first):
        promote(site, one)
    assert stand(site) == (first.name, None, 0.0, second.name)


def refused(site, candidate, match):
    live = stand(site)
    with pytest.raises(DataError, match=match):
        promote(site, candidate)
    assert stand(site) == live
    return records.newest(site.state)


def test_what_the_gate_refused_is_registered_as_that_and_never_loaded(site, engine, candidate):
    promote(site, candidate(1))
    bad = candidate(2, refused="2 conditions unmet")
    record = refused(site, bad, "its gate refused it: 2 conditions unmet")
    assert (record.outcome, list(record.steps)) == (REFUSED, ["validate"])
    assert site.registry.version(bad.base.digest, bad.name).status == REJECTED
    assert bad.name not in engine.paths


def test_an_approval_that_is_taken_back_stops_a_promotion_before_any_traffic(site, engine, candidate):
    promote(site, candidate(1))
    one = candidate(2)

    def veto(step):
        if step == "play":
            version = site.registry.version(one.base.digest, one.name)
            site.registry.sagemaker.update_model_package(
                ModelPackageArn=version.arn,
                ModelApprovalStatus=REJECTED,
                CustomerMetadataProperties=dict(version.metadata),
            )

    site.tell = veto
    record = refused(site, one, "is Rejected")
    assert (record.outcome, "canary" in record.steps) == (REFUSED, False)
    assert one.name not in models(engine)


@pytest.mark.parametrize("kind", ["damaged", "refused by the engine", "like the base", "other weights"])
def test_what_is_not_served_as_trained_meets_no_user(kind, site, engine, candidate):
    promote(site, candidate(1))
    one = candidate(2)
    match kind:
        case "damaged":
            path = one.folder / "adapter_model.safetensors"
            path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
            reason = "has digest"
        case "refused by the engine":
            engine.refuses.add(one.name)
            reason = "status 500.*max_lora_rank"
        case "like the base":
            engine.logprobs[one.name] = -0.5
            reason = "answers like the base"
        case "other weights":
            engine.logprobs[one.name] = -0.251
            reason = "differ from the trainer's"
    record = refused(site, one, reason)
    assert record.outcome == REFUSED
    assert one.name not in models(engine)


def test_what_plays_worse_meets_no_user_and_the_lost_tasks_are_named(site, engine, candidate):
    promote(site, candidate(1))
    one = candidate(2)
    engine.plays[one.name] = losing(oracle(MAZES), MAZES, 7)
    record = refused(site, one, r"0 tasks won, 7 lost against live, exact McNemar p = 0\.016")
    assert record.outcome == REFUSED
    played = json.loads((record.folder(site.state) / "played.json").read_text())
    assert sorted(played["regressions"]) == sorted(maze.digest for maze in MAZES[-7:])


def test_a_canary_that_fails_requests_is_taken_back_by_itself(site, engine, candidate):
    live, one = candidate(1), candidate(2)
    promote(site, live)

    def fail_later(step):
        if step == "judge":
            assert stand(site) == (live.name, one.name, 0.1, None)
            engine.failing.add(one.name)

    site.tell = fail_later
    record = refused(site, one, r"4 of 4 requests to the canary failed \(100\.0%\), of live 0\.0%")
    assert (record.outcome, one.name in models(engine)) == (ROLLED_BACK, False)
    assert {v.adapter: v.alias for v in site.registry.versions(one.base.digest)} == {
        live.name: "live",
        one.name: "",
    }


def test_a_rejected_adapter_may_be_tried_again(site, engine, candidate):
    promote(site, candidate(1))
    one = candidate(2)
    engine.logprobs[one.name] = -0.2
    refused(site, one, "differ")
    del engine.logprobs[one.name]
    assert promote(site, one).id.startswith("0003-promote-")
    assert stand(site)[0] == one.name


@pytest.mark.parametrize("step", ["load", "probe", "play", "canary", "judge", "full"])
def test_an_engine_that_dies_leaves_the_old_adapter_live_and_the_promotion_goes_on_later(
    step, site, engine, candidate
):
    live, one = candidate(1), candidate(2)
    promote(site, live)
    site.tell = lambda said: engine.crash() if said == step else None
    with pytest.raises(SubstrateError):
        promote(site, one)
    assert stand(site) == (live.name, None, 0.0, None)
    engine.start_again()
    site.tell = lambda said: None
    assert promote(site, one).outcome == LIVE
    assert stand(site) == (one.name, None, 0.0, live.name)
    assert models(engine) == {live.name, one.name}


def test_a_restarted_engine_is_no_verdict_against_the_candidate(site, engine, candidate):
    live, one = candidate(1), candidate(2)
    promote(site, live)

    def forget(step):
        if step == "play":
            engine.crash()
            engine.start_again()

    site.tell = forget
    with pytest.raises(SubstrateError, match=f"has lost {min(live.name, one.name)}"):
        promote(site, one)
    assert stand(site) == (live.name, None, 0.0, None)
    site.tell = lambda text: None
    assert promote(site, one).outcome == LIVE
    assert models(engine) == {live.name, one.name}


@pytest.mark.parametrize("step", STEPS)
def test_a_promotion_that_was_interrupted_leaves_the_old_one_and_goes_on(step, site, engine, candidate):
    live, one = candidate(1), candidate(2)
    promote(site, live)

    cut_off(site, one, step)
    if step == "retire":
        assert stand(site) == (one.name, None, 0.0, live.name)
    else:
        assert stand(site) == (live.name, None, 0.0, None)
    repeated = []
    site.tell = repeated.append
    record = promote(site, one)
    assert (record.outcome, record.id) == (LIVE, "0002-promote-" + one.name)
    assert stand(site) == (one.name, None, 0.0, live.name)
    assert ("register" in repeated) is (step != "retire"), "a gate or a person may have refused it since"
    assert ("play" in repeated) is (STEPS.index(step) <= STEPS.index("play"))


def test_what_goes_wrong_once_it_is_live_is_no_verdict_against_it(site, engine, candidate, said):
    one = candidate(1)

    def damage(step):
        said.append(step)
        if step == "retire":
            (site.state / "rollouts" / "odd").mkdir()
            (site.state / "rollouts" / "odd" / "rollout.json").write_text("{}")

    site.tell = damage
    with pytest.raises(DataError, match="is no record of a rollout"):
        promote(site, one)
    assert stand(site) == (one.name, None, 0.0, None)
    (site.state / "rollouts" / "odd" / "rollout.json").unlink()
    site.tell = said.append
    assert promote(site, one).outcome == LIVE


def test_a_registry_that_is_away_hides_the_aliases_and_stops_nothing(site, engine, candidate, said):
    promote(site, candidate(1))
    site.registry.sagemaker.meta.events.register("before-call.sagemaker", away)
    roll_back(site, to="base")
    assert stand(site) == (None, None, 0.0, None)
    assert any(line.startswith("the registry does not show the aliases yet: ") for line in said)


def away(**_):
    raise EndpointConnectionError(endpoint_url="https://sagemaker")


def test_episodes_that_were_played_are_not_played_again(site, engine, candidate):
    one, asked = candidate(1), engine.requests

    cut_off(site, one, "canary")
    path = records.newest(site.state).folder(site.state)
    kept = (path / "live.jsonl").read_bytes()
    (path / "candidate.jsonl").write_bytes(
        b"".join((path / "candidate.jsonl").read_bytes().splitlines(True)[:5])
    )
    record = records.newest(site.state).without("play").save(site.state)
    before = len(asked)
    assert promote(site, one).id == record.id
    replayed = [body for body in asked[before:] if len(body["messages"]) > 1]
    assert {body["model"] for body in replayed} == {f"{MODEL_ID}:{one.name}"}
    assert (path / "live.jsonl").read_bytes() == kept
    assert len((path / "candidate.jsonl").read_text().splitlines()) == len(MAZES)


def test_another_promotion_waits_for_the_first(site, engine, candidate):
    live, one, other = candidate(1), candidate(2), candidate(3)
    promote(site, live)

    def overtake(step):
        if step == "judge":
            site.tell = lambda text: None
            promote(site, other)

    site.tell = overtake
    with pytest.raises(ConfigError, match=f"the promotion of {one.name} is not finished"):
        promote(site, one)


def test_of_a_promotion_and_a_rollback_the_rollback_wins(site, engine, candidate):
    first, second, third = candidate(1), candidate(2), candidate(3)
    promote(site, first)
    promote(site, second)

    def overtake(step):
        if step == "full":
            site.tell = lambda text: None
            roll_back(site)  # ends the canary
            roll_back(site)  # and goes back to the first

    site.tell = overtake
    with pytest.raises(aliases.ReplacedError):
        promote(site, third)
    assert stand(site) == (first.name, None, 0.0, None)
    assert records.newest(site.state).outcome == REPLACED
