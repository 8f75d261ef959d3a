import pytest

from serving.adapter import package
from serving.rollout.destination import RayService, Vllm
from serving.rollout.rules import Played, Rules, Seen, worse_at_play, worse_at_work
from tests.serving.rollout.engine import MODEL_ID
from tests.serving.scripted_server import ScriptedServer
from training.errors import ConfigError, DataError, SubstrateError


@pytest.fixture
def folder(export, base_dir, tmp_path):
    adapter = package(export, tmp_path / "packed", base_dir=base_dir, run_id="r", evaluation_digest="e")
    return tmp_path / "packed" / adapter.name


def test_an_adapter_is_loaded_once_and_unloaded_once(engine, folder):
    destination = Vllm(engine.url, MODEL_ID)
    assert destination.loaded() == set()
    for _ in range(2):
        destination.load(folder)
        assert destination.loaded() == {folder.name}
    assert engine.paths == {f"{MODEL_ID}:{folder.name}": str(folder.resolve())}
    destination.unload(folder.name)
    destination.unload(folder.name)
    assert (destination.loaded(), engine.unloaded) == (set(), [folder.name])


def test_what_the_engine_says_is_passed_on(engine, folder):
    destination = Vllm(engine.url, MODEL_ID)
    engine.refuses.add(folder.name)
    with pytest.raises(DataError, match=r"status 500, .*max_lora_rank 16"):
        destination.load(folder)
    engine.crash()
    with pytest.raises(SubstrateError):
        destination.load(folder)
    with pytest.raises(SubstrateError, match="/metrics does not answer"):
        destination.drain(folder.name, 0)


def test_an_engine_that_loads_nothing_while_it_runs_is_told_from_one_that_refuses(folder):
    with ScriptedServer({MODEL_ID: lambda pictures, answers: ""}) as server:
        server.fault = lambda count: 404
        with pytest.raises(ConfigError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
            Vllm(server.url, MODEL_ID).load(folder)


def test_an_adapter_is_drained_when_the_engine_no_longer_works_on_it(engine, folder):
    destination = Vllm(engine.url, MODEL_ID)
    assert destination.drain(folder.name, 0)
    engine.busy.add(folder.name)
    assert not destination.drain(folder.name, 0.05)
    assert destination.drain("maze-000000000000", 0)
    engine.busy = {"maze-000000000000"}
    assert destination.drain(folder.name, 0)


def test_a_ray_services_stack_hears_of_every_adapter_and_is_followed_to_its_address(engine, folder):
    """Ray Serve lists what lies in S3 before anybody asked for it."""
    told, address = [], ""

    def serve(wanted):
        nonlocal address
        told.append(wanted.name)
        address = engine.url

    destination = RayService(MODEL_ID, lambda: address, serve, timeout_s=5)
    assert (destination.url, destination.loaded()) == ("", set())
    engine.load({"lora_name": f"{MODEL_ID}:{folder.name}", "lora_path": str(folder)})
    for _ in range(2):
        destination.load(folder)
    assert (destination.url, told, destination.loaded()) == (engine.url, [folder.name] * 2, {folder.name})


def test_an_adapter_that_the_service_does_not_list_is_told_with_the_last_trouble(engine, folder):
    addresses = iter(["http://127.0.0.1:9", engine.url])
    destination = RayService(MODEL_ID, lambda: next(addresses, engine.url), lambda folder: None, timeout_s=0)
    with pytest.raises(SubstrateError, match=rf"{folder.name} is not served after 0 s: http://127.0.0.1:9"):
        destination.load(folder)


def seen(requests=100, errors=0, p95=(0.1, 0.25)):
    return Seen(requests, errors, p95)


@pytest.mark.parametrize(
    ("canary", "says"),
    [
        (seen(), []),
        (seen(errors=1), []),
        (seen(errors=3), ["3 of 100 requests to the canary failed (3.0%), of live 1.0%"]),
        (seen(requests=49), ["only 49 of 50 requests came to the canary in 600 s"]),
        (seen(p95=(0.5, 1.0)), []),
        (seen(p95=(1.0, 2.5)), ["95 % of the canary's answers took 1 s or more, of live 0.25 s at most"]),
        (seen(p95=None), []),
    ],
)
def test_a_canary_is_held_against_what_live_did_meanwhile(canary, says):
    assert worse_at_work(seen(errors=1), canary, Rules()) == says


@pytest.mark.parametrize(
    ("won", "lost", "live", "p", "words"),
    [
        (5, 5, 100, 1.0, []),
        (0, 6, 100, 0.031, ["significant"]),
        (8, 12, 100, 0.5, ["12.0%"]),
        (0, 0, 0, 1.0, []),
    ],
)
def test_a_candidate_is_worse_when_it_loses_significantly_or_much(won, lost, live, p, words):
    reasons = worse_at_play(Played(200, 100, live, won, lost, p, ()), Rules())
    assert [word in reason for word, reason in zip(words, reasons, strict=True)] == [True] * len(words)


@pytest.mark.parametrize("change", [{"share": 0}, {"share": 1.1}, {"requests": 0}, {"alpha": -1}])
def test_rules_that_make_no_sense_are_refused(change):
    with pytest.raises(ConfigError, match="no canary under"):
        Rules(**change)
