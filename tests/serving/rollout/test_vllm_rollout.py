"""Promotions on a real vLLM server that loads adapters while it runs: to the end, refused, judged worse by
what their users saw, cut off by the engine's death, taken back by hand and by the timer."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from serving import aliases, probe, tensors
from serving.adapter import Limits, package
from serving.aliases import served_name
from serving.base import Base
from serving.probe import Reference
from serving.rollout import record
from serving.rollout.candidate import Candidate, Questions
from serving.rollout.destination import wait
from serving.rollout.promote import promote
from serving.rollout.record import LIVE, ROLLED_BACK
from serving.rollout.rollback import roll_back
from serving.rollout.rules import Rules
from serving.rollout.site import Site
from serving.rollout.watch import look
from tests.serving.gateway.vllm_server import VllmServer
from tests.serving.rollout.conftest import make_site
from tests.serving.rollout.users import Users, watched
from tests.serving.test_vllm import folder as folder
from training.environments import named
from training.errors import DataError, SubstrateError
from training.evaluate import EvaluationSettings, opening
from training.mazes import published

pytestmark = pytest.mark.vllm
CANARIES = published("easy")[:6]


class DynamicServer(VllmServer):
    """One that starts with the base alone."""

    def __init__(self, where: Path):
        super().__init__(where, [])
        self._environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
        self._command[self._command.index("--max-loras") + 1] = "2"
        self._command.remove("--lora-modules")


@pytest.fixture(scope="module")
def server(folder) -> Iterator[DynamicServer]:
    running = DynamicServer(folder)
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def place(server: DynamicServer, tmp_path: Path, engine, site: Site) -> Site:
    """A site whose engine is the real one."""
    return make_site(tmp_path / "real", server.url)


def candidate(folder: Path, export: str) -> Candidate:
    """An adapter of the tiny base, with what transformers and PEFT say of the exported one."""
    adapter = package(
        folder / export, folder / "packed", base_dir=folder / "base", run_id=export, evaluation_digest="e"
    )
    settings = EvaluationSettings(named("maze", squares_per_move=2), max_turns=2)
    questions = Questions(
        canaries=opening(CANARIES, settings),
        references=probe.read_references(folder / "references.json"),
        tolerance=probe.FP32_TOLERANCE,
        tasks=CANARIES[:4],
        settings=settings,
        max_tokens=4,
        allowed_token_ids=None,
    )
    base = Base.read(folder / "base")
    return Candidate(
        adapter, folder / "packed" / adapter.name, base, Limits(16), "", export, b"{}", questions
    )


def halved(folder: Path) -> str:
    """The export with its weights halved: loadable, and not what was trained."""
    target = folder / "halved"
    if not target.exists():
        target.mkdir()
        weights = tensors.parse((folder / "export" / "adapter_model.safetensors").read_bytes(), "export")
        half = {name: tensors.from_array(one.array() * np.float32(0.5)) for name, one in weights.items()}
        (target / "adapter_model.safetensors").write_bytes(tensors.serialize(half))
        (target / "adapter_config.json").write_bytes((folder / "export" / "adapter_config.json").read_bytes())
    return target.name


def as_served(site: Site, one: Candidate) -> Candidate:
    """The candidate with what the engine itself says of it, in place of a trainer's word."""
    site.destination.load(one.folder)
    with one.questions.policy(site.destination, one.name) as policy:
        answers = policy.complete(one.questions.canaries, top=1)
    site.destination.unload(one.name)
    references = [
        Reference(asked.key, said.token_ids, said.logprobs)
        for asked, said in zip(one.questions.canaries, answers, strict=True)
    ]
    return replace(one, questions=replace(one.questions, references=references))


def test_an_adapter_goes_live_on_vllm_and_what_is_not_it_does_not(place, server, folder):
    first, other = candidate(folder, "export"), candidate(folder, halved(folder))
    with pytest.raises(DataError, match="its gate refused it"):
        promote(place, replace(first, refused="2 of 6 conditions unmet"))
    assert (aliases.read(place.aliases).live, place.destination.loaded()) == (None, set())
    promoted = promote(place, first)
    assert promoted.outcome == LIVE
    assert promoted.steps["probe"]["gap"] < probe.FP32_TOLERANCE
    assert promoted.steps["probe"]["shift"] > 0.1
    with pytest.raises(DataError, match="failed its probe"):
        promote(place, other)
    assert aliases.read(place.aliases).live == first.name
    assert place.destination.loaded() == {first.name}

    other = as_served(place, other)
    seen = []

    def kill_at_play(step: str) -> None:
        seen.append(step)
        if step == "play":
            server.stop(signal.SIGKILL)

    place.tell = kill_at_play
    with pytest.raises(SubstrateError):
        promote(place, other)
    assert aliases.read(place.aliases).live == first.name
    server.start()
    place.tell = seen.append
    assert place.destination.loaded() == set()
    assert promote(place, other).outcome == LIVE
    assert place.destination.loaded() == {first.name, other.name}

    roll_back(place)
    assert aliases.read(place.aliases).live == first.name
    assert place.destination.loaded() == {first.name}
    assert look(place, lambda name: first.questions) is None
    promote(place, other)
    taken_back = look(place, lambda name: first.questions)
    assert "its probe failed" in taken_back.failing
    assert (aliases.read(place.aliases).live, place.destination.loaded()) == (first.name, {first.name})


def answers(place: Site, one: Candidate, question: dict) -> str:
    """What an adapter says to a question, asked past the gateway."""
    model = served_name(place.destination.model_id, one.name)
    url = f"{place.destination.url}/v1/chat/completions"
    said = httpx.post(url, json={"model": model, **question}, timeout=60, trust_env=False)
    return said.raise_for_status().json()["choices"][0]["message"]["content"]


def only_of(text: str, other: str) -> str:
    """The first words of a text that another one lacks."""
    return next(text[at : at + 6] for at in range(len(text) - 6) if text[at : at + 6] not in other)


def test_users_of_a_worse_canary_and_of_an_engine_that_dies(place, server, folder, tmp_path):
    """The canary never says the word at which its users stop reading, so it keeps them waiting."""
    live, other = as_served(place, candidate(folder, halved(folder))), candidate(folder, "export")
    promote(place, live)
    question = {"messages": other.questions.canaries[0].messages(), "max_tokens": 240, "ignore_eos": True}
    place.destination.load(other.folder)
    said, at_length = (answers(place, one, question | {"temperature": 0}) for one in (live, other))
    place.destination.unload(other.name)
    question |= {"temperature": 0, "stop": [only_of(said, at_length)]}
    place.rules = Rules(share=0.5, requests=8, period_s=240, drain_s=20)
    with watched(place, server.url, tmp_path) as public, Users(*public, question) as users:
        with pytest.raises(DataError, match="95 % of the canary's answers took"):
            promote(place, other)
        assert record.newest(place.state).outcome == ROLLED_BACK
        assert {status for status, _ in users.answers} == {200}
        assert {name for _, name in users.answers} == {live.name, other.name}
        assert (aliases.read(place.aliases).live, place.destination.loaded()) == (live.name, {live.name})

        def kill_at_judge(step: str) -> None:
            if step == "judge":
                server.stop(signal.SIGKILL)

        place.tell, place.rules = kill_at_judge, replace(place.rules, slower_s=60)
        with pytest.raises(SubstrateError):
            promote(place, other)
        assert (aliases.read(place.aliases).live, aliases.read(place.aliases).canary) == (live.name, None)
        server.start()
        place.tell = lambda step: None
        assert promote(place, other).outcome == LIVE
        roll_back(place)
        told = len(users.answers)
        assert wait(lambda: len(users.answers) > told + 3, 60)
    assert {answer for answer in users.answers[told + 2 :]} == {(200, live.name)}
