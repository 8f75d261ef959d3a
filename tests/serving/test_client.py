import os
import signal
import threading

import numpy as np
import pytest

from serving.client import ChatPolicy
from serving.endpoint import Endpoint, Retries
from tests.serving.scripted_server import ScriptedServer, oracle
from training.environments import named
from training.errors import ConfigError, SubstrateError
from training.evaluate import Conversation, EvaluationSettings, Turn, play, read_records, summarize
from training.mazes import published

SETTINGS = EvaluationSettings(named("maze", squares_per_move=2), max_turns=10, policy="scripted")
LONG = Turn(np.ones((32, 32, 3), np.uint8), "x" * 500)
QUICK = Retries(attempts=4, first_wait_s=0.01)


@pytest.fixture(scope="module")
def mazes():
    return published("easy")[:12]


def conversation(key: str = "a/0") -> Conversation:
    image = np.zeros((16, 16, 3), np.uint8)
    return Conversation(key, image, [Turn(image + 1, "('move', 0)"), Turn(image + 2, "")])


def test_mazes_are_solved_through_http(mazes):
    with ScriptedServer({"maze": oracle(mazes)}) as server, ChatPolicy(server.url, "maze") as policy:
        records = play(policy, mazes, SETTINGS)
    assert summarize(records).solved == len(mazes)
    assert all(record.turns == record.optimal_turns for record in records)


def test_the_whole_episode_goes_with_every_turn():
    chat = conversation().messages()
    assert [message["role"] for message in chat] == ["user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in chat[1::2]] == ["('move', 0)", ""]
    urls = [message["content"][0]["image_url"]["url"] for message in chat[::2]]
    assert len(set(urls)) == 3
    assert all(url.startswith("data:image/png;base64,") for url in urls)


def test_vision_tokens_are_never_sampled_and_allowed_ids_are_passed_on(mazes):
    with ScriptedServer({"m": lambda pictures, answers: "x"}) as server:
        with ChatPolicy(server.url + "/v1/", "m", "secret") as policy:
            policy.act([conversation()])
        with ChatPolicy(server.url, "m", allowed_token_ids=range(3), max_tokens=7) as policy:
            policy.act([conversation()])
    banned, allowed = server.requests
    assert "<|image_pad|>" in banned["bad_words"]
    assert (banned["temperature"], banned["max_tokens"]) == (0.0, 4)
    assert "bad_words" not in allowed
    assert (allowed["allowed_token_ids"], allowed["max_tokens"]) == ([0, 1, 2], 7)
    assert server.keys == ["Bearer secret", None]


def test_a_sampled_answer_is_seeded_by_episode_and_turn():
    with (
        ScriptedServer({"m": lambda pictures, answers: "x"}) as server,
        ChatPolicy(server.url, "m", temperature=1.0, concurrency=1) as policy,
    ):
        policy.act([conversation("a/0"), conversation("a/1"), conversation("a/0")])
    first, other, again = (request["seed"] for request in server.requests)
    assert first == again != other


def test_answers_keep_the_order_of_the_conversations():
    turn = threading.Barrier(8)

    def slow(pictures, answers):
        turn.wait(timeout=10)
        return answers[0]

    asked = [conversation(f"k/{i}") for i in range(8)]
    for i, one in enumerate(asked):
        one.turns[0] = Turn(one.image, f"answer {i}")
    with ScriptedServer({"m": slow}) as server, ChatPolicy(server.url, "m", concurrency=8) as policy:
        assert policy.act(asked) == [f"answer {i}" for i in range(8)]
        assert policy.act([]) == []


@pytest.mark.parametrize("fault", [503, 429, "hang up"])
def test_passing_faults_are_retried_and_no_maze_is_counted_twice_or_lost(fault, mazes):
    faulty = {2, 5, 6, 30, 31}
    server = ScriptedServer({"m": oracle(mazes)}, lambda count: fault if count in faulty else None)
    with server, ChatPolicy(server.url, "m", retries=QUICK) as policy:
        records = play(policy, mazes, SETTINGS)
    assert [record.digest for record in records] == [maze.digest for maze in mazes]
    assert all(record.solved for record in records)
    assert len(server.requests) == sum(record.turns for record in records) + len(faulty)


def test_an_endpoint_that_dies_ends_the_evaluation_and_it_continues_later(mazes, tmp_path):
    path = tmp_path / "records.jsonl"
    with ScriptedServer({"m": oracle(mazes)}, lambda count: 503 if count > 90 else None) as server:
        reason = r"stopped answering for model 'm' \(status 503: scripted"
        with (
            ChatPolicy(server.url, "m", retries=QUICK) as policy,
            pytest.raises(SubstrateError, match=reason),
        ):
            play(policy, mazes, SETTINGS, records_path=path)
        done = read_records(path)
        assert 0 < len(done) < len(mazes)
        server.fault = lambda count: None
        with ChatPolicy(server.url, "m", retries=QUICK) as policy:
            records = play(policy, mazes, SETTINGS, records_path=path)
    assert len(records) == len(read_records(path)) == len(mazes)
    assert read_records(path)[: len(done)] == done


@pytest.mark.parametrize("fault", ["silence", "trickle"])
def test_an_answer_that_never_comes_or_never_ends_is_given_up(fault):
    once = Retries(attempts=2, first_wait_s=0.01)
    server = ScriptedServer({"m": lambda p, a: "x"}, lambda count: fault if count < 3 else None)
    with server, ChatPolicy(server.url, "m", retries=once, timeout_s=0.1) as policy:
        with pytest.raises(SubstrateError, match=r"stopped answering.*ReadTimeout"):
            policy.act([conversation()])
        assert policy.act([conversation()]) == ["x"]
    assert len(server.requests) == 3


def test_an_answer_far_too_long_is_no_completion():
    server = ScriptedServer({"m": lambda p, a: "x"}, lambda count: "flood")
    with (
        server,
        ChatPolicy(server.url, "m", retries=QUICK) as policy,
        pytest.raises(SubstrateError, match="something else than a chat completion"),
    ):
        policy.act([conversation()])
    assert len(server.requests) == 1


@pytest.fixture
def interruptible():
    """A shell that starts tests in the background has them ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_does_not_wait_for_the_slowest_request(interruptible):
    def interrupt(pictures, answers):
        os.kill(os.getpid(), signal.SIGINT)
        return "x"

    asked = [conversation(f"k/{i}") for i in range(4)]
    server = ScriptedServer({"m": interrupt}, lambda count: "silence" if count < 4 else None)
    with server, ChatPolicy(server.url, "m", timeout_s=600) as policy:
        with pytest.raises(KeyboardInterrupt):
            policy.act(asked)
        assert all(thread.daemon for thread in threading.enumerate() if thread.name == "chat-policy")


@pytest.mark.parametrize("text", [None, "", "\ud800", "🙈" * 5000, "('move', 0)<|im_end|>"])
def test_whatever_a_model_says_can_be_played_and_sent_back(text, mazes, tmp_path):
    server = ScriptedServer({"m": lambda pictures, answers: text})
    path = tmp_path / "records.jsonl"
    with server, ChatPolicy(server.url, "m", retries=QUICK) as policy:
        records = play(policy, mazes[:1], EvaluationSettings(SETTINGS.environment, 3), records_path=path)
    assert read_records(path) == records
    assert (records[0].turns, records[0].solved) == (3, False)


def test_nobody_listening_is_said_plainly():
    with ScriptedServer({}) as server:
        url = server.url
    with ChatPolicy(url, "m", retries=QUICK) as policy, pytest.raises(SubstrateError, match="ConnectError"):
        policy.act([conversation()])


def test_one_lost_request_ends_the_others_at_once():
    server = ScriptedServer({"m": lambda p, a: "x"}, lambda count: 404 if count == 1 else 503)
    patient = Retries(attempts=9, first_wait_s=60)
    asked = [conversation(f"k/{i}") for i in range(16)]
    with (
        server,
        ChatPolicy(server.url, "m", retries=patient) as policy,
        pytest.raises(ConfigError, match="404"),
    ):
        policy.act(asked)


@pytest.mark.parametrize(
    ("model", "fault", "reason"),
    [
        ("other", None, "does not exist"),
        ("m", 401, "API key"),
        ("m", 400, "scripted 400"),
        ("m", 413, "max_turns"),
    ],
)
def test_refusals_are_not_retried(model, fault, reason):
    server = ScriptedServer({"m": lambda pictures, answers: "x"}, lambda count: fault)
    with (
        server,
        ChatPolicy(server.url, model, retries=QUICK) as policy,
        pytest.raises(ConfigError, match=reason),
    ):
        policy.act([conversation()])
    assert len(server.requests) == 1


def test_a_model_that_answers_for_ever_loses_its_mazes_and_not_the_evaluation(mazes):
    def rambles(pictures, answers):
        return "Let me look again. " * 20

    with (
        ScriptedServer({"m": rambles}, longest=900) as server,
        ChatPolicy(server.url, "m", retries=QUICK) as policy,
    ):
        records = play(policy, mazes[:2], SETTINGS)
        assert {(record.turns, record.solved) for record in records} == {(10, False)}
        assert records[0].malformed[2].startswith("Let me") > records[0].malformed[3].startswith("Let me")
        with pytest.raises(ConfigError, match="maximum context length"):
            policy.complete([Conversation("a/0", LONG.image, [LONG] * 2)], top=5)
        server.longest = -1
        with pytest.raises(ConfigError, match="maximum context length"):
            play(policy, mazes[:2], SETTINGS)


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="not an address"):
        ChatPolicy("127.0.0.1:8000", "m")
    with pytest.raises(ConfigError, match="concurrency = 0"):
        ChatPolicy("http://127.0.0.1:8000", "m", concurrency=0)
    with pytest.raises(ConfigError, match="temperature = nan"):
        ChatPolicy("http://127.0.0.1:8000", "m", temperature=float("nan"))


def test_waiting_ends_when_all_models_are_served_and_says_what_is_missing():
    heard = []
    with ScriptedServer({"base": lambda p, a: "x"}) as server:
        endpoint = Endpoint(server.url)
        assert endpoint.models() == ["base"]
        with pytest.raises(SubstrateError, match="does not serve base:maze"):
            endpoint.wait_until_served("base:maze", timeout_s=0)

        def add(reason: str) -> None:
            heard.append(reason)
            server.models["base:maze"] = lambda p, a: "x"

        endpoint.wait_until_served(["base", "base:maze"], timeout_s=30, on_wait=add)
    assert len(heard) == 1
    endpoint.close()
    with pytest.raises(SubstrateError, match="does not list its models"):
        Endpoint(server.url).models()
