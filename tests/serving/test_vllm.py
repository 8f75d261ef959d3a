"""An adapter in a real vLLM server: what was packaged is served, and the probe tells when it is not."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serving import probe, tensors
from serving.adapter import Adapter, package
from serving.client import ChatPolicy
from serving.endpoint import Endpoint
from training.environments import named
from training.errors import ConfigError, DataError
from training.evaluate import Conversation, EvaluationSettings, Turn, play
from training.mazes import published
from training.render import draw

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("SKYPOD_TRAIN_PYTHON") or ROOT / ".venv-train" / "bin" / "python")
START_S = 300
pytestmark = pytest.mark.vllm


def environment() -> dict[str, str]:
    keep = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return keep | {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """base/, export/ and references.json, as the training environment writes them."""
    assert PYTHON.is_file(), f"no training environment at {PYTHON}; set SKYPOD_TRAIN_PYTHON"
    folder = tmp_path_factory.mktemp("served")
    command = [str(PYTHON), "-m", "tests.serving.peft_export", str(folder)]
    made = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=START_S
    )
    assert made.returncode == 0, made.stderr[-3000:]
    return folder


def packaged(folder: Path, export: str, out: str) -> Adapter:
    return package(
        folder / export, folder / out, base_dir=folder / "base", run_id="test", evaluation_digest="none"
    )


@pytest.fixture(scope="module")
def adapter(folder: Path) -> Adapter:
    return packaged(folder, "export", "adapters")


@pytest.fixture(scope="module")
def other(folder: Path) -> Adapter:
    """The same adapter with its weights halved: loadable, and not what was trained."""
    weights = tensors.parse((folder / "export" / "adapter_model.safetensors").read_bytes(), "export")
    target = folder / "export-halved"
    target.mkdir()
    halved = {name: tensors.from_array(tensor.array() * np.float32(0.5)) for name, tensor in weights.items()}
    (target / "adapter_model.safetensors").write_bytes(tensors.serialize(halved))
    (target / "adapter_config.json").write_bytes((folder / "export" / "adapter_config.json").read_bytes())
    return packaged(folder, "export-halved", "adapters")


@pytest.fixture(scope="module")
def url(folder: Path, adapter: Adapter, other: Adapter) -> Iterator[str]:
    """A vLLM server on loopback with the base and both adapters."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    modules = [f"{one.name}={folder / 'adapters' / one.name}" for one in (adapter, other)]
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--model", str(folder / "base"), "--served-model-name", "base"]
    command += ["--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"]
    command += ["--kv-cache-memory-bytes", str(2**27), "--limit-mm-per-prompt", '{"image": 10, "video": 0}']
    command += ["--distributed-executor-backend", "uni", "--enable-lora", "--max-lora-rank", "16"]
    command += ["--max-loras", "1", "--max-cpu-loras", "4", "--lora-modules", *modules]
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=output, stderr=output, start_new_session=True
        )
    address = f"http://127.0.0.1:{port}"

    def alive(reason: str) -> None:
        assert server.poll() is None, log.read_text()[-3000:]

    try:
        Endpoint(address).wait_until_served(["base", adapter.name, other.name], START_S, alive)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


@pytest.fixture(scope="module")
def canaries() -> list[Conversation]:
    return [Conversation(f"{maze.digest}/0", draw(maze, maze.start)) for maze in published("easy")[:6]]


def test_the_served_adapter_computes_what_the_trainer_computes(url, folder, adapter, canaries):
    references = probe.read_references(folder / "references.json")
    # Every picture tells in the trainer's numbers, so pictures that got mixed up would show.
    assert len({reference.logprobs for reference in references}) == len(canaries)
    with ChatPolicy(url, "base") as base, ChatPolicy(url, adapter.name) as served:
        found = probe.run(base, served, canaries, references)
    found.require()
    assert found.gap is not None
    assert found.gap < probe.FP32_TOLERANCE
    assert found.shift > 0.1


def test_the_probe_refuses_other_weights_and_an_adapter_without_effect(url, folder, other, canaries):
    references = probe.read_references(folder / "references.json")
    with ChatPolicy(url, "base") as base, ChatPolicy(url, other.name) as served:
        with pytest.raises(DataError, match="failed its probe"):
            probe.run(base, served, canaries, references).require()
        with pytest.raises(DataError, match="answers like the base"):
            probe.run(base, base, canaries).require()


def test_episodes_are_played_through_http_and_repeat_exactly(url, adapter):
    mazes = published("easy")[:6]
    settings = EvaluationSettings(named("maze", squares_per_move=2), max_turns=10, policy=adapter.name)
    with ChatPolicy(url, adapter.name) as policy:
        first = play(policy, mazes, settings)
    with ChatPolicy(url, adapter.name, concurrency=2) as policy:
        assert play(policy, mazes, settings) == first
    assert [record.turns for record in first] == [10] * 6


def test_a_hot_policy_never_samples_a_vision_token(url, folder, adapter, canaries):
    hot = {"temperature": 2.0, "max_tokens": 16}
    often = canaries * 8
    for at, canary in enumerate(often):
        often[at] = Conversation(f"{canary.key}/{at}", canary.image)
    with ChatPolicy(url, adapter.name, **hot) as policy:
        banned = {token for completion in policy.complete(often) for token in completion.token_ids}
    with ChatPolicy(url, adapter.name, allowed_token_ids=sorted(banned)[:3], **hot) as policy:
        allowed = {token for completion in policy.complete(often) for token in completion.token_ids}
    assert len(banned) > 8
    assert not banned & vision_ids(folder)
    assert allowed <= set(sorted(banned)[:3])


def vision_ids(folder: Path) -> set[int]:
    config = json.loads((folder / "base" / "config.json").read_text())
    return {config[f"{name}_token_id"] for name in ("image", "video", "vision_start", "vision_end")}


def test_a_conversation_without_room_gets_the_empty_answer(url, adapter, canaries):
    long = [Turn(canaries[0].image, "('move', 0)" * 2000)]
    with ChatPolicy(url, adapter.name) as policy:
        assert policy.act([Conversation("a/0", canaries[0].image, long)]) == [""]


def test_the_servers_refusals_are_passed_on(url, adapter, canaries):
    with ChatPolicy(url, "nobody") as policy, pytest.raises(ConfigError, match="does not exist"):
        policy.act(canaries[:1])
    with (
        ChatPolicy(url, adapter.name, max_tokens=5000) as policy,
        pytest.raises(ConfigError, match="status 400"),
    ):
        policy.act(canaries[:1])
