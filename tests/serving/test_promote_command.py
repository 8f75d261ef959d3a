"""`skypod promote`, `rollback`, `adapters` and `export` on runs that the real gate has judged."""

import json
import shutil
from pathlib import Path

import boto3
import numpy as np
import pytest
from botocore.exceptions import NoCredentialsError
from click.testing import CliRunner
from moto import mock_aws

from cdk_app import promotable, settings
from cdk_app.export import export
from cdk_app.promote import adapters, promote, rollback
from serving import aliases, tensors
from serving.adapter import Limits
from serving.rollout.sagemaker import SageMakerEndpoint
from stacks.outputs import Outputs
from tests.serving import judged_run
from tests.serving.artifacts import CONFIG, language_weights, write_export
from tests.serving.rollout.engine import Engine
from tests.serving.scripted_server import oracle
from tests.synth.conftest import ENDPOINT
from training import lineage
from training.errors import ConfigError, DataError, SubstrateError
from training.files import write_json

pytestmark = pytest.mark.slow
BASE_MODEL = "base"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """shared/base, and the runs good, better and bad of it."""
    folder = tmp_path_factory.mktemp("made")
    base_dir = folder / "shared" / BASE_MODEL
    base_dir.mkdir(parents=True)
    (base_dir / "config.json").write_text(json.dumps(CONFIG))
    weights = {"lm_head.weight": tensors.from_array(np.ones((32, 8), np.float32))}
    (base_dir / "model.safetensors").write_bytes(tensors.serialize(weights))
    for seed, name in enumerate(("good", "better", "bad")):
        judged_run.make(folder / "runs" / name, base_dir, seed, passes=name != "bad")
    return folder


@pytest.fixture
def place(made, tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr("serving.endpoint._LONGEST_WAIT_S", 0.01)
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    deployed = Outputs(
        **dict.fromkeys(Outputs.__dataclass_fields__, "")
        | {
            "adapters_uri": "s3://artifacts/adapters",
            "serve_repository_uri": "123456789012.dkr.ecr.us-west-2.amazonaws.com/serve",
            "serve_image_tag": "1",
            "account": "123456789012",
            "inference_endpoint_name": "skypod-dev-inference",
        }
    )
    monkeypatch.setattr("cdk_app.outputs.read", lambda session, environment: deployed)
    shutil.copytree(made, tmp_path / "place")
    with mock_aws():
        s3 = boto3.client("s3", region_name="us-west-2")
        options = {"CreateBucketConfiguration": {"LocationConstraint": "us-west-2"}}
        s3.create_bucket(Bucket="artifacts", **options)
        yield tmp_path / "place"


@pytest.fixture
def engine(place):
    run = place / "runs" / "good"
    knows = oracle([task for split in ("dev", "test") for task in judged_run.tasks(run, split)])
    with Engine(knows) as running:
        yield running


def call(command, place: Path, *arguments: str, url: str = "") -> str:
    given = [*arguments, "--state", str(place / "serving")]
    if url:
        given += ["--server", url]
    if command in (promote, rollback):
        given += ["--runs", str(place / "runs")]
    if command is promote:
        given += ["--shared", str(place / "shared"), "--requests", "3"]
    result = CliRunner().invoke(command, given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_two_runs_are_promoted_looked_at_and_taken_back(place, engine):
    said = call(promote, place, str(place / "runs" / "good"), url=engine.url)
    first = lineage.read(place / "runs" / "good")["serving"]["name"]
    assert f"{first} is live; the base answered before" in said
    call(promote, place, str(place / "runs" / "better"), url=engine.url)
    second = lineage.read(place / "runs" / "better")["serving"]["name"]
    told = call(adapters, place)
    assert told.splitlines()[:2] == [f"live      {second}", f"previous  {first}"]
    found = json.loads(call(adapters, place, "--json"))
    assert [one["outcome"] for one in found["rollouts"]] == ["live", "live"]
    registry = boto3.client("sagemaker", region_name="us-west-2")
    version = registry.list_model_packages(ModelPackageType="Versioned")
    assert {one["ModelApprovalStatus"] for one in version["ModelPackageSummaryList"]} == {"Approved"}
    given = ["watch", "--once", "--state", str(place / "serving"), "--server", engine.url]
    assert CliRunner().invoke(adapters, given, catch_exceptions=False).exit_code == 0
    engine.logprobs[second] = -0.3
    assert CliRunner().invoke(adapters, given, catch_exceptions=False).exit_code == 1
    assert aliases.read(place / "serving" / "aliases.json").live == first
    engine.logprobs.clear()
    call(promote, place, second, "--share", "0.5", url=engine.url)
    assert f"{first} answers; {second} was taken back" in call(rollback, place, url=engine.url)


def test_a_rollback_needs_neither_the_run_nor_aws(place, engine, monkeypatch):
    for name in ("good", "better"):
        call(promote, place, str(place / "runs" / name), url=engine.url)
    first = lineage.read(place / "runs" / "good")["serving"]["name"]
    shutil.rmtree(place / "runs")

    def away(session, environment):
        raise NoCredentialsError

    monkeypatch.setattr("cdk_app.outputs.read", away)
    said = call(rollback, place, url=engine.url)
    assert f"{first} answers" in said
    assert "the registry does not show the aliases yet: the registry cannot be reached" in said


@pytest.mark.parametrize(
    ("command", "given", "said"),
    [
        (promote, ["run", "--period", "nan"], "nan seconds do not end"),
        (promote, ["run", "--period", "inf"], "inf seconds do not end"),
        (promote, ["run", "--period", "-1"], "-1.0 is not in the range x>=0"),
        (adapters, ["watch", "--every", "0"], "0.0 is not in the range x>=1"),
        (adapters, ["watch", "--every", "nan"], "nan seconds do not end"),
        (adapters, ["--state", "elsewhere", "watch", "--once"], "--state before 'watch' says nothing"),
        (adapters, ["--json", "watch", "--once"], "--json before 'watch' says nothing"),
    ],
)
def test_an_option_that_would_do_nothing_or_never_end_is_refused(command, given, said):
    result = CliRunner().invoke(command, given)
    assert (result.exit_code, said in result.output) == (2, True), result.output


def test_a_run_that_its_gate_refused_is_not_promoted(place, engine):
    with pytest.raises(DataError, match=r"its gate refused it: \d+ of \d+ conditions unmet: solve rate"):
        call(promote, place, str(place / "runs" / "bad"), url=engine.url)
    assert engine.paths == {}
    registry = boto3.client("sagemaker", region_name="us-west-2")
    version = registry.list_model_packages(ModelPackageType="Versioned")
    assert [one["ModelApprovalStatus"] for one in version["ModelPackageSummaryList"]] == ["Rejected"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("withdrawn", "was withdrawn"),
        ("by hand", "is not the decision that run.json has"),
        ("left over", "was withdrawn"),
        ("other adapter", "is of the adapter [0-9a-f]{16}, the one there is"),
        ("another run's", r"gate.json: evidence\.good\.adapter is missing"),
    ],
)
def test_a_decision_that_does_not_hold_promotes_nothing(change, match, place, engine):
    run = place / "runs" / "good"
    decision = json.loads((run / "gate.json").read_text())
    match change:
        case "withdrawn":
            (run / "gate.json").unlink()
        case "by hand":
            write_json(run / "gate.json", decision | {"decision": "passed", "made": "now"})
        case "left over":
            lineage.remove(run, "gate")
        case "other adapter":
            export_dir = run / "checkpoints" / "last"
            base = promotable.Base.read(place / "shared" / BASE_MODEL)
            write_export(export_dir, language_weights(base, seed=9))
        case "another run's":
            other = json.loads((place / "runs" / "better" / "gate.json").read_text())
            write_json(run / "gate.json", other)
            lineage.update(run, gate=other)
    with pytest.raises(DataError, match=match):
        call(promote, place, str(run), url=engine.url)
    assert not (place / "serving" / "aliases.json").exists()
    assert engine.paths == {}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def edit(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    write_json(path, content)


def in_both(run: Path, **changes) -> None:
    """A decision that gate.json and run.json agree on; None takes a key away."""
    decided = json.loads((run / "gate.json").read_text()) | changes
    decided = {key: value for key, value in decided.items() if value is not None}
    write_json(run / "gate.json", decided)
    lineage.update(run, gate=decided)


def canary(run: Path, **changes) -> None:
    edit(run / "canaries.json", lambda rows: rows[0].update(changes))


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda run: cut(run / "gate.json"), r"gate.json is not as it was written: JSONDecodeError"),
        (lambda run: (run / "gate.json").write_text("[]"), r"gate.json is not as it was written: .*list"),
        (lambda run: (run / "gate.json").write_text(DEEP), r"gate.json is not as .*: RecursionError"),
        (lambda run: in_both(run, evidence=None), r"gate.json: evidence\.good\.adapter is missing"),
        (lambda run: in_both(run, evidence=[]), r"gate.json: evidence\.good\.adapter is missing"),
        (lambda run: in_both(run, candidates=None), r"gate.json: candidates\.good is missing"),
        (lambda run: in_both(run, conditions=None), r"gate.json: conditions is missing"),
        (lambda run: in_both(run, conditions=[]), r"gate.json was decided on no conditions"),
        (lambda run: in_both(run, conditions=[{"name": "x"}]), r"gate.json: passed is missing"),
        (lambda run: in_both(run, conditions=["x"]), r"gate.json: passed is missing"),
        (lambda run: in_both(run, passed=None), r"gate.json: passed is missing"),
        (lambda run: in_both(run, passed="yes"), r"gate.json: passed is 'yes', no bool"),
        (
            lambda run: edit(run / "run.json", lambda m: m["evaluations"].pop("final")),
            r"run.json: evaluations\.final\.records is missing",
        ),
        (
            lambda run: edit(run / "run.json", lambda m: m["adapter"].pop("folder")),
            "run.json: .*adapter has no texts as folder, digest",
        ),
        (lambda run: edit(run / "run.json", lambda m: m.update(gate=[])), "run.json: .*gate is no dict"),
        (lambda run: edit(run / "run.json", lambda m: m.update(run=1)), "run.json: .*run is no str"),
        (lambda run: canary(run, key=["a"]), r"canaries.json has a reference without .*: \['a'\]"),
        (lambda run: canary(run, logprobs=["a", "b"]), r"canaries.json has a reference without"),
        (lambda run: canary(run, logprobs=[None, 0.0]), r"canaries.json has a reference without"),
        (lambda run: canary(run, logprobs=[float("nan"), 0]), r"canaries.json has a reference without"),
        (lambda run: canary(run, token_ids=["1", "2"]), r"canaries.json has a reference without"),
        (lambda run: (run / "canaries.json").write_text(DEEP), "canaries.json holds no reference"),
        (lambda run: (run / "generation.json").write_text("{"), "generation.json is not as it was"),
        (lambda run: (run / "generation.json").write_text("{}"), "json: allowed_token_ids is missing"),
        (
            lambda run: (run / "generation.json").write_text('{"allowed_token_ids": "abc"}'),
            "generation.json: allowed_token_ids is 'abc', no list",
        ),
        (
            lambda run: (run / "generation.json").write_text('{"allowed_token_ids": [1, "2"]}'),
            r"generation.json: allowed_token_ids is \[1, '2'\], no list of token ids",
        ),
        (lambda run: (run / "generation.json").unlink(), "holds no generation.json"),
        (
            lambda run: (run / "checkpoints" / "last" / "adapter_config.json").write_text(DEEP),
            "is of the adapter",
        ),
    ],
)  # fmt: skip
def test_a_file_that_no_run_wrote_is_named(damage, match, place):
    run = place / "runs" / "good"
    damage(run)
    with pytest.raises(DataError, match=match) as refused:
        promotable.candidate(run, place / "shared" / BASE_MODEL, place / "out", "dev", Limits())
    assert refused.value.remedy


def test_a_torn_adapter_in_the_state_folder_is_written_anew_as_the_error_says(place, engine):
    run, state = place / "runs" / "good", place / "serving"
    call(promote, place, str(run), url=engine.url)
    folder = state / "adapters" / lineage.read(run)["serving"]["name"]
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    cut(folder / "adapter_model.safetensors")
    with pytest.raises(DataError, match="has digest") as refused:
        call(promote, place, str(run), url=engine.url)
    assert f"move {folder} away and give the same command again" in refused.value.remedy
    folder.rename(place / "torn")
    assert "is live already" in call(promote, place, str(run), url=engine.url)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == written


def test_what_is_asked_for_has_to_be_there(place, engine):
    with pytest.raises(ConfigError, match="is no run folder"):
        call(promote, place, "maze-000000000000", url=engine.url)
    with pytest.raises(ConfigError, match="test-512 is sealed"):
        call(promote, place, str(place / "runs" / "good"), "--split", "test-512", url=engine.url)
    with pytest.raises(DataError, match="rank 4 exceeds the server's maximum of 2"):
        promotable.candidate(
            place / "runs" / "good", place / "shared" / BASE_MODEL, place / "out", "dev", Limits(max_rank=2)
        )


def test_a_run_is_exported_with_the_tasks_that_its_trainer_played(place, tmp_path):
    run, config = place / "runs" / "good", place / "shared" / BASE_MODEL / "config.json"
    given = [str(run), str(tmp_path / "out"), "--shared", str(place / "shared")]
    CliRunner().invoke(export, given, catch_exceptions=False)
    how = json.loads((tmp_path / "out" / "how.json").read_text())
    assert how["expected"]["solved"] == lineage.read(run)["evaluations"]["final"]["solved"]
    assert len(how["tasks"]) == how["expected"]["n"] == len(judged_run.tasks(run, "test"))
    vocabulary = json.loads(config.read_text())["text_config"]["vocab_size"]
    assert how["generate"]["suppress_tokens"] == [t for t in range(vocabulary) if t not in (1, 2)]
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()


def exported(place: Path, *options: str):
    out = place / "out"
    given = [str(place / "runs" / "good"), str(out), "--shared", str(place / "shared"), *options]
    CliRunner().invoke(export, given, catch_exceptions=False)
    return out


def test_an_export_states_what_its_own_adapter_did(place):
    run, base_dir = place / "runs" / "good", place / "shared" / BASE_MODEL
    with pytest.raises(ConfigError, match=r"has no evaluation '\.\./nope'") as refused:
        exported(place, "--label", "../nope")
    assert "baseline, baseline-ood" in refused.value.remedy
    with pytest.raises(ConfigError, match=r"baseline was played by base:[0-9a-f]{16}, not by adapter:"):
        exported(place, "--label", "baseline")
    assert (exported(place, "--label", "final-test-512") / "how.json").is_file()
    shutil.rmtree(place / "out")
    kept = json.loads((run / "run.json").read_text())
    edit(run / "run.json", lambda m: m.update(test_plays=[]))
    with pytest.raises(DataError, match="final is not sealed as finished"):
        exported(place)
    write_json(run / "run.json", kept)
    write_export(run / "checkpoints" / "last", language_weights(promotable.Base.read(base_dir), seed=99))
    with pytest.raises(DataError, match=r"the adapter in .* is [0-9a-f]{16}, run.json names"):
        exported(place)
    assert not (place / "out").exists()


def test_an_export_names_the_base_that_the_run_began_with(place):
    edit(place / "shared" / BASE_MODEL / "config.json", lambda config: config.update(other=True))
    with pytest.raises(DataError, match="the run's base is"):
        exported(place)
    assert not (place / "out").exists()


@pytest.fixture
def with_endpoint(place) -> str:
    """Settings that have an endpoint."""
    path = place / "dev.toml"
    path.write_text((settings.FOLDER / "dev.toml").read_text() + ENDPOINT)
    return str(path)


def test_a_run_is_promoted_to_the_environments_endpoint(place, with_endpoint, monkeypatch):
    loaded = []

    def load(destination: SageMakerEndpoint, folder: Path) -> None:
        loaded.append((destination.url, destination._upload(folder)))
        raise SubstrateError("far enough")

    monkeypatch.setattr(SageMakerEndpoint, "loaded", lambda destination: set())
    monkeypatch.setattr(SageMakerEndpoint, "load", load)
    with pytest.raises(SubstrateError, match="far enough"):
        call(promote, place, str(place / "runs" / "good"), "--environment", with_endpoint, "--endpoint")
    name = lineage.read(place / "runs" / "good")["serving"]["name"]
    runtime = "https://runtime.sagemaker.us-west-2.amazonaws.com"
    address = f"s3://artifacts/adapters/{name}.tar.gz"
    assert loaded == [(f"{runtime}/endpoints/skypod-dev-inference/invocations", address)]
    registry = boto3.client("sagemaker", region_name="us-west-2")
    (version,) = registry.list_model_packages(ModelPackageType="Versioned")["ModelPackageSummaryList"]
    entered = registry.describe_model_package(ModelPackageName=version["ModelPackageArn"])
    image = settings.load(with_endpoint).serving.endpoint.image
    assert entered["InferenceSpecification"]["Containers"][0]["Image"] == image


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--environment", "dev"], "environment dev has no SageMaker endpoint"),
        (["--server", "http://127.0.0.1:1"], "--endpoint and --server name different engines"),
        (["--gateway", "http://127.0.0.1:1"], "--endpoint and --gateway name different engines"),
        (["--model-id", "other"], "--model-id is 'other', and the endpoint's base is 'maze'"),
    ],
)
def test_an_endpoint_that_is_not_there_or_not_meant_is_told(place, with_endpoint, given, said):
    with pytest.raises(ConfigError, match=said):
        call(rollback, place, "--endpoint", "--environment", with_endpoint, *given)
