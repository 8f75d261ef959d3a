"""Promotions and rollbacks where the engine is a service that is brought up for an adapter."""

import shutil
from dataclasses import replace

import pytest

from cdk_app.site import recipe_of
from serving import aliases
from serving.base import CONFIG
from serving.rollout import record as records
from serving.rollout.destination import RayService
from serving.rollout.promote import promote
from serving.rollout.record import PROMOTE, REFUSED
from serving.rollout.rollback import roll_back
from serving.rollout.traffic import Questioning
from serving.rollout.watch import look
from tests.serving.rollout.conftest import make_candidate, make_questions
from tests.serving.rollout.engine import MODEL_ID
from training.errors import ConfigError, DataError


class Service:
    """A service before the engine. `told` holds the adapters that its stack heard of, each with what was live
    then; while it is gone there is no address, and serving brings it up."""

    def __init__(self, site, engine):
        self.site, self.engine = site, engine
        self.up = False
        self.told: list[tuple[str, str | None]] = []
        self.destination = RayService(MODEL_ID, lambda: engine.url if self.up else "", self.serve, 5.0)

    def serve(self, folder):
        self.told.append((folder.name, aliases.read(self.site.aliases).live))
        self.up = True
        self.engine.load({"lora_name": f"{MODEL_ID}:{folder.name}", "lora_path": str(folder)})


@pytest.fixture
def service(site, engine) -> Service:
    return Service(site, engine)


@pytest.fixture
def there(site, service):
    return replace(
        site,
        destination=service.destination,
        traffic=Questioning(service.destination, make_questions()),
    )


def test_each_promotion_tells_the_stack_and_a_rollback_needs_it_not(there, service, candidate):
    first, second = candidate(1), candidate(2)
    promote(there, first)
    promote(there, second)
    assert service.told == [(first.name, None), (second.name, first.name)]
    roll_back(there)
    assert aliases.read(there.aliases).live == first.name
    assert len(service.told) == 2


def test_a_rollback_does_not_wait_for_a_service_that_is_gone(there, service, candidate):
    first, second = candidate(1), candidate(2)
    promote(there, first)
    promote(there, second)
    service.up = False
    service.engine.models = {MODEL_ID: service.engine.models[MODEL_ID]}
    roll_back(there)
    assert service.told[2:] == [(first.name, first.name)], "it was live before the service was brought up"


def test_the_timer_brings_back_a_service_that_is_gone(there, service, candidate):
    one = candidate(1)
    promote(there, one)
    service.up = False
    service.engine.models = {MODEL_ID: service.engine.models[MODEL_ID]}
    assert look(there, lambda name: make_questions()) is None
    assert service.told[1:] == [(one.name, one.name)]


def test_one_of_another_base_is_refused_while_anything_is_live(there, service, candidate, base_dir, tmp_path):
    live = candidate(1)
    promote(there, live)
    other = shutil.copytree(base_dir, tmp_path / "other" / "base")
    (other / CONFIG).write_text((other / CONFIG).read_text() + "\n")
    one = make_candidate(other, 2)
    with pytest.raises(DataError, match=rf"{one.name} is of another base than {live.name}"):
        promote(there, one)
    assert [name for name, _ in service.told] == [live.name]
    roll_back(there, "base")
    promote(there, one)
    assert aliases.read(there.aliases).live == one.name


def test_an_adapter_is_served_as_its_own_run_says_whatever_was_promoted_since(tmp_path):
    """Not as the newest run says, which may have been refused."""
    none = aliases.Aliases()
    for name in ("maze-000000000001", "maze-000000000002"):
        record = records.begin(tmp_path, PROMOTE, name, str(tmp_path / "runs" / name), none)
        replace(record, outcome=REFUSED).save(tmp_path)
    with pytest.raises(DataError, match=r"runs/maze-000000000001"):
        recipe_of(tmp_path, "maze-000000000001")
    with pytest.raises(ConfigError, match="which base maze-000000000003 needs"):
        recipe_of(tmp_path, "maze-000000000003")


def test_records_keep_their_order_beyond_four_digits(tmp_path):
    first = records.begin(tmp_path, PROMOTE, "maze-000000000001", "run", aliases.Aliases())
    replace(first, id="9999-promote-maze-000000000001").save(tmp_path)
    last = records.begin(tmp_path, PROMOTE, "maze-000000000002", "run", aliases.Aliases())
    assert last.number == 10_000
    assert records.newest(tmp_path) == last


@pytest.mark.parametrize("broken", ["aliases", "questions"])
def test_a_look_that_cannot_probe_is_told_and_takes_nothing_back(broken, there, candidate, said):
    one = candidate(1)
    promote(there, one)
    before = there.aliases.read_text()
    if broken == "aliases":
        there.aliases.write_text("{")
    assert look(there, lambda name: replace(make_questions(), references=())) is None
    assert "was not probed" in said[-1] or "nothing was probed" in said[-1]
    assert there.aliases.read_text() in (before, "{")
