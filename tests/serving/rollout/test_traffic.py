"""Promotions behind the real gateway, while users ask for the public name."""

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from serving import aliases
from serving.aliases import ReplacedError
from serving.rollout import record as records
from serving.rollout.destination import wait
from serving.rollout.promote import promote
from serving.rollout.record import LIVE, ROLLED_BACK
from serving.rollout.rollback import roll_back
from serving.rollout.rules import Rules
from serving.rollout.traffic import GatewayTraffic, _percentile
from tests.serving.rollout.conftest import make_questions
from tests.serving.rollout.users import Users, watched
from training.errors import DataError, SubstrateError

pytestmark = pytest.mark.slow
QUESTION = {"messages": make_questions().canaries[0].messages()}


@pytest.fixture
def gateway(engine, site, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """(address, key) of the public side; the site watches its control side."""
    site.rules = Rules(share=0.5, requests=8, period_s=60, drain_s=5, slower_s=5)
    with watched(site, engine.url, tmp_path) as public:
        yield public


def test_users_meet_the_canary_then_the_new_adapter_and_no_error(gateway, site, engine, candidate):
    first, second, third = candidate(1), candidate(2), candidate(3)
    site.traffic.begin()
    with Users(*gateway, QUESTION) as users:
        promote(site, first)
        began = len(users.answers)
        record = promote(site, second)
        promote(site, third)
        roll_back(site)
    seen = record.steps["judge"]
    assert (record.outcome, seen["canary"]["errors"], seen["live"]["errors"]) == (LIVE, 0, 0)
    assert seen["canary"]["requests"] >= 8
    assert seen["live"]["requests"] > 0
    asked = users.answers[began:]
    assert {status for status, _ in asked} == {200}
    order = [name for name, _ in itertools.groupby(name for _, name in asked)]
    assert (order[0], set(order)) == (first.name, {first.name, second.name, third.name})
    assert engine.unloaded == [first.name, third.name]


def test_a_canary_that_fails_its_users_is_taken_back_by_itself(gateway, site, engine, candidate):
    live, one = candidate(1), candidate(2)
    with Users(*gateway, QUESTION) as users:
        promote(site, live)
        site.tell = lambda said: engine.failing.add(one.name) if said == "canary" else None
        with pytest.raises(DataError, match=r"requests to the canary failed \(100\.0%\), of live 0\.0%"):
            promote(site, one)
        told = len(users.answers)
        assert wait(lambda: len(users.answers) >= told + 10, 30)
    assert records.newest(site.state).outcome == ROLLED_BACK
    assert aliases.read(site.aliases).live == live.name
    assert {answer for answer in users.answers[told + 1 :]} == {(200, live.name)}


def test_a_canary_that_nobody_asks_is_not_judged_good(gateway, site, candidate):
    live, one = candidate(1), candidate(2)
    with Users(*gateway, QUESTION):
        promote(site, live)
    site.rules = replace(site.rules, period_s=0.2)
    with pytest.raises(DataError, match=r"only 0 of 8 requests came to the canary in 0\.2 s"):
        promote(site, one)
    assert aliases.read(site.aliases).live == live.name


def test_a_rollback_ends_a_promotion_that_waits_for_its_canary(gateway, site, candidate):
    live, one = candidate(1), candidate(2)
    with Users(*gateway, QUESTION):
        promote(site, live)
    site.rules = replace(site.rules, period_s=3600)
    told, site.tell = site.tell, lambda said: back.start() if said == "judge" else None
    back = threading.Thread(target=lambda: roll_back(replace(site, tell=told)))
    with pytest.raises(ReplacedError):
        promote(site, one)
    back.join()
    assert aliases.read(site.aliases).live == live.name


def test_a_gateway_that_does_not_follow_is_told(gateway, site, candidate, said):
    first, second = candidate(1), candidate(2)
    with Users(*gateway, QUESTION):
        promote(site, first)
        older = aliases.read(site.aliases)
        promote(site, second)
    aliases.write(site.aliases, older)  # somebody restored a copy
    roll_back(site, to="base")
    assert any("the gateway follows version 4 of the aliases, not 3" in line for line in said)
    aliases.write(site.aliases, older)
    with pytest.raises(SubstrateError, match="the gateway follows version 4"):
        promote(site, second)


def test_a_gateway_that_does_not_answer_stops_a_promotion(site, candidate):
    site.traffic = GatewayTraffic("http://127.0.0.1:9", "key")
    one = candidate(1)
    with pytest.raises(SubstrateError, match="is the gateway up"):
        promote(site, one)
    assert aliases.read(site.aliases).canary is None


def test_of_a_histogram_the_bucket_is_known_in_which_a_percentile_lies():
    assert _percentile({0.1: 0, 0.5: 94, 1.0: 95, float("inf"): 100}) == (0.5, 1.0)
    assert _percentile({0.1: 3, float("inf"): 3}) == (0.0, 0.1)
    assert _percentile({0.1: 0, float("inf"): 0}) is None
    assert _percentile({}) is None
