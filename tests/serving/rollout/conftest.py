from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

import tests.serving.moto_models  # noqa: F401
from serving.adapter import Limits, package
from serving.base import Base
from serving.probe import Reference
from serving.registry import Registry
from serving.rollout.candidate import Candidate, Questions
from serving.rollout.destination import Vllm
from serving.rollout.promote import promote
from serving.rollout.rules import Rules
from serving.rollout.site import Site
from serving.rollout.traffic import Questioning
from tests.serving.artifacts import language_weights, write_export
from tests.serving.rollout.engine import MODEL_ID, TRAINED_LOGPROB, Engine, losing
from tests.serving.scripted_server import oracle
from training.environments import named
from training.evaluate import EvaluationSettings, opening
from training.mazes import published
from training.render import draw, image_data_url

MAZES = published("easy")[:12]
CANARIES = 3
RULES = Rules(requests=4, period_s=5.0, drain_s=0.2)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """No request is worth waiting for seconds."""
    monkeypatch.setattr("serving.endpoint._LONGEST_WAIT_S", 0.01)


@pytest.fixture
def engine() -> Iterator[Engine]:
    """Its adapters solve every maze, its base all but five."""
    with Engine(oracle(MAZES)) as running:
        running.models[MODEL_ID] = losing(oracle(MAZES), MAZES, 5)
        yield running


def make_questions() -> Questions:
    """What the trainer noted of an adapter that plays like the oracle."""
    settings = EvaluationSettings(named("maze", squares_per_move=2), max_turns=10)
    knows, references = oracle(MAZES), []
    for maze in MAZES[:CANARIES]:
        said = knows([image_data_url(draw(maze, maze.start))], [])
        references.append(Reference(f"{maze.digest}/0", (len(said), 2), (TRAINED_LOGPROB,) * 2))
    return Questions(
        canaries=opening(MAZES[:CANARIES], settings),
        references=references,
        tolerance=1e-4,
        tasks=MAZES,
        settings=settings,
        max_tokens=4,
        allowed_token_ids=None,
    )


def make_candidate(base_dir: Path, seed: int, refused: str = "") -> Candidate:
    """A packaged adapter whose weights are of a seed."""
    base, place = Base.read(base_dir), base_dir.parent
    export = write_export(place / f"export-{seed}", language_weights(base, seed=seed))
    adapter = package(
        export, place / "packed", base_dir=base_dir, run_id=f"run-{seed}", evaluation_digest="e"
    )
    return Candidate(
        adapter=adapter,
        folder=place / "packed" / adapter.name,
        base=base,
        limits=Limits(),
        refused=refused,
        run=f"runs/run-{seed}",
        run_manifest=b"{}",
        questions=make_questions(),
    )


def make_site(state: Path, url: str, tell: Callable[[str], None] = lambda text: None) -> Site:
    """A site whose registry is that of the process's mocked AWS."""
    s3 = boto3.client("s3", region_name="us-east-1")
    s3.create_bucket(Bucket="artifacts")
    registry = Registry(boto3.client("sagemaker", region_name="us-east-1"), s3, "artifacts", "serve:1")
    destination = Vllm(url, MODEL_ID)
    traffic = Questioning(destination, make_questions())
    return Site(state, destination, traffic, registry, RULES, tell)


def cut_off(site: Site, one: Candidate, at: str) -> None:
    """A promotion that somebody stops before a step."""

    def interrupt(said: str) -> None:
        if said == at:
            raise KeyboardInterrupt

    tell, site.tell = site.tell, interrupt
    with pytest.raises(KeyboardInterrupt):
        promote(site, one)
    site.tell = tell


@pytest.fixture
def candidate(base_dir: Path) -> Callable[..., Candidate]:
    return lambda seed, **options: make_candidate(base_dir, seed, **options)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def site(engine: Engine, tmp_path: Path, monkeypatch, said: list[str]) -> Iterator[Site]:
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield make_site(tmp_path / "serving", engine.url, said.append)
