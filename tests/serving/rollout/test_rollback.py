import threading
from dataclasses import asdict

import pytest

from serving import aliases
from serving.rollout import record as records
from serving.rollout.promote import promote
from serving.rollout.record import ROLLED_BACK
from serving.rollout.rollback import roll_back
from serving.rollout.watch import look, watch
from training.errors import ConfigError, DataError
from training.files import write_json


def stand(site):
    found = aliases.read(site.aliases)
    return found.live, found.canary, found.previous


@pytest.fixture
def promoted(site, candidate):
    """Two adapters, the second live."""
    made = [candidate(1), candidate(2)]
    for one in made:
        promote(site, one)
    return [one.name for one in made]


def test_a_rollback_by_hand_is_one_change_of_the_aliases(site, engine, promoted, said):
    first, second = promoted
    asked, version = len(engine.requests), aliases.read(site.aliases).version
    record = roll_back(site)
    assert stand(site) == (first, None, None)
    assert aliases.read(site.aliases).version == version + 1
    assert len(engine.requests) == asked
    assert (record.adapter, record.outcome, record.before.live) == (second, ROLLED_BACK, second)
    assert record.steps["retire"]["unloaded"] == engine.unloaded == [second]
    assert f"{first} answers all; {second} was taken back: by hand" in said
    with pytest.raises(ConfigError, match=f"live is {first}, and nothing came before it"):
        roll_back(site)
    assert records.read_all(site.state)[-1] == record


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"id": "x"}, "its id 'x' does not begin with a number"),
        ({"action": 5}, "action is 5, no str"),
        ({"run": None}, "run is missing"),
        ({"adapter": ["a"]}, r"adapter is \['a'\], no str"),
        ({"steps": []}, r"steps is \[\], no dict"),
        ({"before": {"live": "a", "of": "b"}}, "of"),
        ({"known": {"canary_share": 2}}, "canary_share is 2"),
    ],
)
def test_a_record_that_no_rollout_wrote_is_named(change, match, tmp_path):
    made = records.begin(tmp_path, records.PROMOTE, "maze-0", "run", aliases.Aliases())
    assert records.read_all(tmp_path) == [made]
    content = asdict(made) | change
    path = tmp_path / "rollouts" / content["id"] / "rollout.json"
    write_json(path, content)
    with pytest.raises(DataError, match=f"{path} is no record of a rollout .*{match}"):
        records.begin(tmp_path, records.PROMOTE, "maze-1", "run", aliases.Aliases())
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"is no record of a rollout .*RecursionError"):
        records.read_all(tmp_path)


def test_a_rollback_to_a_named_adapter_or_the_base(site, engine, promoted):
    _, second = promoted
    with pytest.raises(DataError, match="never was live"):
        roll_back(site, to="maze-000000000000")
    with pytest.raises(ConfigError, match="is live already"):
        roll_back(site, to=second)
    roll_back(site, to="base")
    assert stand(site) == (None, None, None)
    assert sorted(engine.unloaded) == sorted(promoted)
    roll_back(site, to=second)
    assert stand(site) == (second, None, None)
    assert f"maze:{second}" in engine.models


def test_a_rollback_loads_what_a_restarted_engine_has_lost_and_works_while_it_is_down(site, engine, promoted):
    first, second = promoted
    engine.crash()
    roll_back(site)
    assert stand(site) == (first, None, None)
    engine.start_again()
    roll_back(site, to=second)
    assert (stand(site)[0], f"maze:{second}" in engine.models) == (second, True)


def test_what_still_has_requests_stays_loaded_until_the_next_rollback(site, engine, promoted, said):
    _, second = promoted
    engine.busy.add(second)
    assert roll_back(site).steps["retire"]["unloaded"] == []
    assert f"{second} still has requests after 0.2 s and stays loaded" in said
    engine.busy.clear()
    assert second in roll_back(site, to="base").steps["retire"]["unloaded"]


def test_the_probe_on_the_timer_takes_back_what_no_longer_answers_as_trained(
    site, engine, promoted, candidate, said
):
    first, second = promoted
    questions = candidate(1).questions
    stop = threading.Event()

    def ask(name):
        if sum("answers as trained" in line for line in said) == 2:
            engine.logprobs[second] = -0.3
        return questions

    record = watch(site, ask, every_s=0.01, stop=stop)
    assert record is not None
    assert "its probe failed: log-probabilities differ" in record.failing
    assert stand(site) == (first, None, None)
    assert look(site, lambda name: questions) is None


def test_the_first_adapter_is_taken_back_to_the_base(site, engine, candidate):
    one = candidate(1)
    promote(site, one)
    engine.logprobs[one.name] = -0.5
    record = look(site, lambda name: one.questions)
    assert "it answers like the base" in record.failing
    assert stand(site) == (None, None, None)


def test_an_engine_that_is_down_is_no_reason_to_roll_back(site, engine, promoted, candidate, said):
    questions = candidate(1).questions
    engine.crash()
    assert look(site, lambda name: questions) is None
    assert " was not probed: " in said[-1]
    engine.start_again()
    assert look(site, lambda name: questions) is None
    assert [line for line in said if line.endswith("was lost and is loaded again")] == [
        f"{name} was lost and is loaded again" for name in sorted(promoted)
    ]
    assert stand(site) == (promoted[1], None, promoted[0])


def test_a_watch_ends_when_it_is_told_to(site, promoted, candidate):
    stop = threading.Event()
    stop.set()
    assert watch(site, lambda name: candidate(1).questions, every_s=60, stop=stop) is None
