"""`skypod evaluate` against real HTTP servers and real adapter folders: who played is known, nothing is
counted twice or lost, and a sealed split is played once."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from cdk_app import candidates
from cdk_app.evaluate import evaluate
from serving import adapter as adapters
from serving import tensors
from serving.base import Base
from serving.client import ChatPolicy
from tests.serving.artifacts import CONFIG, EXPORTED, language_weights, write_export
from tests.serving.scripted_server import ScriptedServer, oracle
from training import exports, lineage, prepare, recipe, splits
from training.errors import ConfigError, DataError, SubstrateError
from training.evaluate import EvaluationSettings, read_records
from training.files import file_digest, write_json
from training.protocol import STOP
from training.render import draw, image_data_url

pytestmark = pytest.mark.slow
SMOKE = Path(__file__).resolve().parents[2] / "recipes" / "maze-smoke.toml"
BASE_MODEL = "models/maze-tiny-smoke"
CANARIES = 3


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """A shared folder with a base and a run that trained, published, and wrote down what it answers."""
    shared = tmp_path_factory.mktemp("shared")
    base_dir = shared / BASE_MODEL
    base_dir.mkdir(parents=True)
    (base_dir / "config.json").write_text(json.dumps(CONFIG))
    weights = {"lm_head.weight": tensors.from_array(np.ones((32, 8), np.float32))}
    (base_dir / "model.safetensors").write_bytes(tensors.serialize(weights))
    run = shared / "run"
    prepare.prepare(recipe.load(SMOKE), run, base_dir=base_dir, image="test", source=SMOKE)
    write_json(run / "generation.json", {"allowed_token_ids": [1, 2]})
    export = write_export(run / "checkpoints" / "last", language_weights(Base.read(base_dir)))
    packaged = adapters.package(
        export, run / "adapter", base_dir=base_dir, run_id="run", evaluation_digest="e"
    )
    lineage.update(
        run,
        adapter={"folder": "checkpoints/last", "digest": exports.digest(export)},
        serving={"name": packaged.name, "uri": "s3://nowhere", "base_digest": packaged.base_digest},
    )
    answers = oracle(tasks(run, "test"))
    rows = []
    for task in tasks(run, "test")[:CANARIES]:
        said = answers([picture(task)], [])
        rows.append({"key": f"{task.digest}/0", "token_ids": [len(said), 2], "logprobs": [-0.25, -0.25]})
    write_json(run / "canaries.json", rows)
    return shared


def tasks(run: Path, split: str):
    return [splits.row_task(row) for row in lineage.read_split(run, split)]


def picture(task) -> str:
    return image_data_url(draw(task, task.start))


@pytest.fixture
def shared(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "shared"))


@pytest.fixture
def run(shared: Path) -> Path:
    return shared / "run"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """No request is worth waiting for seconds."""
    monkeypatch.setattr("serving.endpoint._LONGEST_WAIT_S", 0.01)


@pytest.fixture
def knows(run: Path):
    """A script that solves every evaluation maze of the run."""
    return oracle([task for split in ("dev", "test", "test-512", "ood") for task in tasks(run, split)])


def served(run: Path) -> str:
    return f"maze:{lineage.read(run)['serving']['name']}"


def own(run: Path) -> str:
    return "adapter:" + lineage.read(run)["adapter"]["digest"][:16]


def call(run: Path, *arguments: str) -> Result:
    given = (str(run), "--shared", str(run.parent), "--timeout", "5", *arguments)
    return CliRunner().invoke(evaluate, given, catch_exceptions=False)


def test_an_endpoint_plays_a_split_and_everything_is_on_record(run, knows):
    with ScriptedServer({"maze": knows, served(run): knows}) as server:
        result = call(run, "--split", "dev", "--policy", f"{server.url}#{served(run)}")
        label = f"served-{own(run)[8:16]}-dev"
        asked = len(server.requests)
        again = call(run, "--split", "dev", "--policy", f"{server.url}#{served(run)}")
        assert len(server.requests) == asked + CANARIES
    assert again.stdout == result.stdout
    assert f"{label}: 16/16 played, 16 solved" in result.stderr
    shown = dict(line.split(maxsplit=1) for line in result.stdout.splitlines() if line.startswith("  "))
    assert shown["solved"] == "16 of 16"
    assert shown["ceiling"] == "100.0%"
    assert "REPEAT" not in shown
    assert "solve rate           100.0% [79.4%, 100.0%] (exact, 95 %)" in result.stdout
    entry = lineage.read(run)["evaluations"][label]
    assert (entry["policy"], entry["verified"], entry["split"]) == (own(run), True, "dev")
    assert json.loads((run / "evaluations" / f"{label}.summary.json").read_text()).items() <= entry.items()
    records = read_records(run / "evaluations" / f"{label}.jsonl")
    assert {record.digest for record in records} == {task.digest for task in tasks(run, "dev")}
    assert {record.policy for record in records} == {own(run)}


def test_an_endpoint_that_dies_is_continued_by_the_same_command(run, knows):
    server = ScriptedServer({"m": knows}, lambda count: "hang up" if count > 115 else None)
    path = run / "evaluations" / "http-test-512.jsonl"
    with server:
        arguments = ("--split", "test-512", "--name", "http", "--policy", f"{server.url}#m")
        first = CliRunner().invoke(evaluate, (str(run), *arguments))
        assert isinstance(first.exception, SubstrateError)
        assert "stopped answering" in str(first.exception)
        kept = path.read_bytes()
        assert 0 < kept.count(b"\n") < 16
        assert f"{kept.count(b'\n')} of 16 episodes are kept; the same command continues" in first.stderr
        assert lineage.read(run)["evaluations"] == {}
        server.fault = lambda count: None
        call(run, *arguments)
    assert path.read_bytes().startswith(kept)
    keys = [record.key for record in read_records(path)]
    assert sorted(keys) == sorted(f"{task.digest}/0" for task in tasks(run, "test-512"))


def test_a_verified_endpoint_may_come_back_elsewhere(run, knows):
    arguments = ("--split", "test-512", "--name", "http")
    dead = ScriptedServer({served(run): knows}, lambda count: "hang up" if count > 118 else None)
    with dead, pytest.raises(SubstrateError, match="stopped answering"):
        call(run, *arguments, "--policy", f"{dead.url}#{served(run)}")
    assert read_records(run / "evaluations" / "http-test-512.jsonl")
    with ScriptedServer({served(run): knows}) as server:
        result = call(run, *arguments, "--json", "--policy", f"{server.url}#{served(run)}")
    entry = json.loads(result.stdout)
    assert (entry["n"], entry["solve_rate"], len(entry["plays"])) == (16, entry["ceiling"], 1)


def test_a_sealed_split_is_played_once_and_a_repeat_is_shown_with_its_reason(run, knows):
    with ScriptedServer({served(run): knows}) as server:
        policy = ("--policy", f"{server.url}#{served(run)}")
        once = call(run, "--split", "test-512", *policy)
        lineage.update(run, test_plays=[])  # as after a crash between the summary and the seal
        assert call(run, "--split", "test-512", *policy).stdout == once.stdout
        with pytest.raises(ConfigError, match=f"test-512 is sealed: {own(run)} has played"):
            call(run, "--split", "test-512", "--name", "lucky", *policy)
        with pytest.raises(ConfigError, match="sealed"):
            call(run, "--split", "test-512", "--temperature", "1", *policy)
        repeated = call(run, "--split", "test-512", "--again", "the server was updated", *policy)
    assert "REPEAT" not in once.stdout
    assert f"REPEAT 2             served-{own(run)[8:16]}-again1-test-512: the server was updated" in (
        repeated.stdout
    )
    assert [play["again"] for play in lineage.read(run)["test_plays"]] == [None, "the server was updated"]


def test_what_cannot_be_verified_is_said_and_has_one_play_under_all_its_names(run, knows):
    with ScriptedServer({"m": knows, "n": knows}) as server:
        result = call(run, "--split", "ood", "--policy", f"{server.url}#m")
        with pytest.raises(ConfigError, match="ood is sealed: unverified has played"):
            call(run, "--split", "ood", "--policy", f"{server.url}#n")
    assert f"unverified:{server.url}#m (no gate will take this)" in result.stdout
    (entry,) = lineage.read(run)["evaluations"].values()
    assert entry["verified"] is False


@pytest.mark.parametrize("wrong", ["tokens", "log-probabilities"])
def test_a_server_that_serves_something_else_under_the_name_is_refused(run, knows, wrong):
    with ScriptedServer({served(run): (lambda *_: STOP) if wrong == "tokens" else knows}) as server:
        if wrong == "log-probabilities":
            server.logprob = lambda model, place: -0.26
        with pytest.raises(DataError, match=f"does not answer like the adapter of that name.*{wrong}"):
            call(run, "--split", "test", "--policy", f"{server.url}#{served(run)}")
    assert lineage.read(run).get("test_started", []) == []


def test_a_name_without_canaries_proves_nothing(run, knows):
    (run / "canaries.json").unlink()
    with ScriptedServer({served(run): knows}) as server:
        result = call(run, "--split", "dev", "--policy", f"{server.url}#{served(run)}")
    assert "no gate will take this" in result.stdout


def test_sampled_play_has_seeds_of_its_own_and_tells_pass_at_k(run, knows):
    def sometimes(pictures, answers):
        return knows(pictures, answers) if len(pictures) > 1 or picked(pictures) else STOP

    starts = {picture(task): at for at, task in enumerate(tasks(run, "dev"))}
    seen = dict.fromkeys(starts, 0)

    def picked(pictures):
        seen[pictures[-1]] += 1
        return seen[pictures[-1]] <= starts[pictures[-1]] % 3

    arguments = ("--samples", "2", "--temperature", "0.7", "--seed", "5", "--json", "--name", "hot")
    with ScriptedServer({"m": sometimes}) as server:
        entry = json.loads(call(run, "--split", "dev", "--policy", server.url, *arguments).stdout)
    first = [request for request in server.requests if len(request["messages"]) == 1]
    assert len({request["seed"] for request in first}) == len(first) == 32
    assert {request["temperature"] for request in first} == {0.7}
    assert (entry["n"], entry["samples"], entry["solved"], entry["interval"]) == (32, 2, 15, "clustered")
    assert entry["pass_at_k"] == {"1": 15 / 32, "2": 10 / 16}
    assert (entry["temperature"], entry["seed"]) == (0.7, 5)


def test_more_samples_that_were_interrupted_are_continued(run, knows):
    more = ("--samples", "2")
    with ScriptedServer({"m": knows}) as server:
        arguments = (
            "--split",
            "dev",
            "--policy",
            server.url,
            "--temperature",
            "1",
            "--name",
            "hot",
            "--json",
        )
        call(run, *arguments)
        path, noted = run / "evaluations" / "hot-dev.jsonl", (run / "run.json").read_text()
        call(run, *arguments, *more)
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:20]))
        (run / "run.json").write_text(noted)
        assert json.loads(call(run, *arguments, *more).stdout)["n"] == len(lines) == 32
        path.write_text("".join(lines[1:20]))
        (run / "run.json").write_text(noted)
        with pytest.raises(DataError, match="is not what was recorded"):
            call(run, *arguments, *more)


def test_records_changed_after_the_play_are_refused(run, knows):
    with ScriptedServer({"m": knows}) as server:
        arguments = ("--split", "dev", "--name", "x", "--policy", server.url)
        call(run, *arguments)
        path = run / "evaluations" / "x-dev.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
        with pytest.raises(DataError, match="is not what was recorded"):
            call(run, *arguments)
        with pytest.raises(ConfigError, match="other settings"):
            call(run, *arguments, "--temperature", "1")


def test_a_rate_edited_in_the_manifest_is_not_repeated(run, knows):
    with ScriptedServer({"m": knows}) as server:
        arguments = ("--split", "dev", "--name", "x", "--policy", server.url, "--json")
        played = json.loads(call(run, *arguments).stdout)
        with lineage.changing(run) as manifest:
            manifest["evaluations"]["x-dev"] |= {"solved": 16, "solve_rate": 0.99}
        again = json.loads(call(run, *arguments).stdout)
    assert (again["solved"], again["solve_rate"]) == (played["solved"], played["solve_rate"]) != (16, 0.99)


def test_a_split_edited_by_hand_is_refused(run, knows):
    path = run / "data" / "dev.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    splits.write(path, [json.loads(line) for line in path.read_text().splitlines()])
    with (
        ScriptedServer({"m": knows}) as server,
        pytest.raises(DataError, match=r"split dev\.jsonl was changed"),
    ):
        call(run, "--split", "dev", "--policy", server.url)


def test_a_file_is_played_unless_it_holds_what_is_sealed(run, knows, tmp_path):
    mine = tmp_path / "My mazes.jsonl"
    splits.write(mine, lineage.read_split(run, "dev")[:5])
    smuggled = tmp_path / "smuggled.jsonl"
    splits.write(smuggled, [*lineage.read_split(run, "dev")[:5], *lineage.read_split(run, "test")[:2]])
    with ScriptedServer({"m": knows}) as server:
        result = call(run, "--split", str(mine), "--name", "a", "--policy", server.url, "--json")
        with pytest.raises(ConfigError, match="holds 2 tasks of test, which is sealed"):
            call(run, "--split", str(smuggled), "--policy", server.url)
        mine.write_bytes(mine.read_bytes() + b"\n")
        with pytest.raises(DataError, match="was changed"):
            call(run, "--split", str(mine), "--policy", server.url)
    entry = json.loads(result.stdout)
    assert (entry["solved"], entry["n"]) == (5, 5)
    assert entry["label"].startswith("a-my-mazes-")


def test_a_sealed_layout_asked_the_other_way_round_is_refused(run, tmp_path):
    environment = lineage.read_recipe(run).environment.make()
    other_way = [
        splits.row_of(environment, replace(task, start=task.goal, goal=task.start), "mine", origin="by hand")
        for task in tasks(run, "test-512")[:3]
    ]
    # Not even up to symmetry are these the sealed tasks.
    assert not {row["canonical"] for row in other_way} & {
        row["canonical"] for row in lineage.read_split(run, "test-512")
    }
    mine = tmp_path / "mine.jsonl"
    splits.write(mine, other_way)
    with pytest.raises(ConfigError, match="holds 3 tasks of test-512, which is sealed"):
        call(run, "--split", str(mine), "--base")


@pytest.mark.parametrize("split", ["dev", "train"])
@pytest.mark.parametrize("exchanged", [False, True])
def test_the_runs_own_splits_hold_nothing_sealed_either(run, split, exchanged):
    sealed, mine = lineage.read_split(run, "test-512"), lineage.read_split(run, split)
    with lineage.changing(run) as manifest:
        manifest["data"][split] = splits.write(run / "data" / f"{split}.jsonl", sealed)
        if exchanged:
            manifest["data"]["test-512"] = splits.write(run / "data" / "test-512.jsonl", mine)
    with pytest.raises(ConfigError, match=f"{split}.jsonl holds 16 tasks of test-512, which is sealed"):
        call(run, "--split", split, "--base")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "dev"], "who plays is not clear"),
        (["--split", "dev", "--base", "--policy", "http://x"], "who plays is not clear"),
        (["--split", "exam", "--base"], "no split 'exam'"),
        (["--split", "dev", "--base", "--samples", "2"], "one game played 2 times"),
        (["--split", "dev", "--base", "--samples", "0"], "samples = 0"),
        (["--split", "dev", "--base", "--temperature", "-1"], "temperature = -1"),
        (["--split", "dev", "--base", "--name", "final"], "cannot be called 'final'"),
        (["--split", "dev", "--base", "--name", "../x"], "cannot be called"),
        (["--split", "dev", "--base", "--shared", "."], "no base model in"),
        (["--split", "dev", "--policy", "localhost:8000"], "is not an address"),
    ],
)
def test_wrong_input_is_told_before_anything_is_played(run, arguments, message):
    with pytest.raises(ConfigError, match=message):
        call(run, *arguments)
    assert lineage.read(run)["evaluations"] == {}


def test_a_folder_that_is_no_run_and_a_server_that_does_not_say_which_model(run, tmp_path, knows):
    with pytest.raises(ConfigError, match=r"holds no run\.json"):
        call(tmp_path, "--split", "dev", "--base")
    assert CliRunner().invoke(evaluate, (str(tmp_path / "none"), "--split", "dev", "--base")).exit_code == 2
    with (
        ScriptedServer({"a": knows, "b": knows}) as server,
        pytest.raises(ConfigError, match="serves a, b"),
    ):
        call(run, "--split", "dev", "--policy", server.url)


def test_an_adapter_is_one_candidate_however_it_is_packaged(run, shared, tmp_path):
    base_dir = shared / BASE_MODEL
    export = run / "checkpoints" / "last"
    resaved = write_export(
        tmp_path / "resaved", language_weights(Base.read(base_dir)), EXPORTED | {"revision": None}
    )
    renamed = adapters.package(
        export, tmp_path / "renamed", base_dir=base_dir, run_id="other", evaluation_digest="", licence="MIT"
    )
    for number, folder in enumerate((export, resaved, tmp_path / "renamed" / renamed.name)):
        candidate, packaged = candidates.adapter(run, folder, base_dir, tmp_path / str(number))
        assert candidate.name == own(run)
        assert (packaged / "adapter.json").is_file()
    other = write_export(tmp_path / "other", language_weights(Base.read(base_dir), seed=1))
    raw, packaged = candidates.adapter(run, other, base_dir, tmp_path / "o")
    assert raw.name != own(run)
    assert candidates.adapter(run, packaged, base_dir, tmp_path / "p")[0].name == raw.name


@pytest.fixture
def another(run, shared, tmp_path) -> Path:
    """Another policy, published."""
    raw = write_export(tmp_path / "another", language_weights(Base.read(shared / BASE_MODEL), seed=1))
    base_dir = shared / BASE_MODEL
    made = adapters.package(raw, tmp_path, base_dir=base_dir, run_id="run", evaluation_digest="e")
    return tmp_path / made.name


def published(run: Path) -> Path:
    return run / "adapter" / lineage.read(run)["serving"]["name"]


def test_what_was_put_in_place_of_the_published_adapter_is_not_the_runs_own(run, shared, another, tmp_path):
    shutil.rmtree(published(run))
    shutil.copytree(another, published(run))
    base_dir = shared / BASE_MODEL
    for number, folder in enumerate((another, tmp_path / "another")):
        assert candidates.adapter(run, folder, base_dir, tmp_path / str(number))[0].name != own(run)
    export = run / "checkpoints" / "last"
    assert candidates.adapter(run, export, base_dir, tmp_path / "e")[0].name == own(run)
    with pytest.raises(DataError, match="the folder must bear its name"):
        candidates.adapter(run, published(run), base_dir, tmp_path / "p")


@pytest.mark.parametrize("lost", ["gone", "changed"])
def test_without_the_export_the_published_adapter_is_known_by_its_name(run, shared, another, tmp_path, lost):
    base_dir, export = shared / BASE_MODEL, run / "checkpoints" / "last"
    shutil.rmtree(export)
    if lost == "changed":
        shutil.copytree(tmp_path / "another", export)
    found = {
        folder: candidates.adapter(run, folder, base_dir, tmp_path / str(number))[0].name
        for number, folder in enumerate((published(run), another, tmp_path / "another"))
    }
    assert found[published(run)] == own(run)
    assert found[another] == found[tmp_path / "another"] != own(run)


def test_an_adapter_that_is_broken_and_another_base_are_refused(run, shared, tmp_path):
    base_dir = shared / BASE_MODEL
    weights = language_weights(Base.read(base_dir), rank=2)
    broken = write_export(tmp_path / "broken", weights)
    with pytest.raises(DataError, match="has shape"):
        call(run, "--split", "dev", "--adapter", str(broken))
    (base_dir / "model.safetensors").write_bytes(
        (base_dir / "model.safetensors").read_bytes()[:-4] + b"\0" * 4
    )
    with pytest.raises(DataError, match="the run's base is"):
        call(run, "--split", "dev", "--base")


def test_without_the_libraries_the_environment_that_has_them_is_named(run, monkeypatch):
    monkeypatch.setattr("serving.local.find_spec", lambda name: None)
    with pytest.raises(SubstrateError, match="lacks torch, transformers, peft") as refused:
        call(run, "--split", "test", "--base")
    assert ".venv-train/bin/skypod evaluate" in refused.value.remedy


def test_nothing_is_sealed_by_a_player_that_is_not_there(run, shared, monkeypatch, knows):
    """A dead or mistyped address, a model of another name, a Python without the libraries."""
    policy = "http://127.0.0.1:9#m"
    with pytest.raises(SubstrateError, match="does not list its models"):
        call(run, "--split", "test", "--policy", policy)
    with ScriptedServer({"m": knows}) as server, pytest.raises(ConfigError, match="serves no 'n', but m"):
        call(run, "--split", "test", "--policy", f"{server.url}#n")
    monkeypatch.setattr("serving.local.find_spec", lambda name: None)
    with pytest.raises(SubstrateError, match="lacks torch"):
        call(run, "--split", "test", "--base")
    assert "test_started" not in lineage.read(run)


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "0", "1e9"])
def test_a_time_limit_is_one(run, seconds):
    with pytest.raises(ConfigError, match="timeout"):
        call(run, "--split", "dev", "--base", "--timeout", seconds)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"recipe": 7}'])
def test_a_damaged_manifest_is_told_clearly(run, content):
    (run / "run.json").write_text(content)
    with pytest.raises(DataError, match=r"files of run 'run' are not as a run writes them: run.json: "):
        call(run, "--split", "dev", "--base")


@pytest.mark.parametrize("content", [b"{bad\n", b"\xff\n", b"[]\n", b"1\n", b"[" * 100_000 + b"\n"])
def test_a_file_that_is_no_split_is_told_clearly(run, tmp_path, content):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(content)
    path.with_name("mine.jsonl.sha256").write_text(f"{file_digest(path)}  mine.jsonl\n")
    with pytest.raises(
        DataError, match=r"split mine.jsonl has a line that is no row|a row of a split is no task"
    ):
        call(run, "--split", str(path), "--base")
    path.with_name("mine.jsonl.sha256").write_bytes(b"\xff\n")
    with pytest.raises(DataError, match=r"cannot read split mine.jsonl and its digest"):
        call(run, "--split", str(path), "--base")


def test_canaries_are_asked_greedily(run, knows):
    with ScriptedServer({served(run): knows}) as server, ChatPolicy(server.url, served(run)) as policy:
        rules = lineage.read_recipe(run).environment
        settings = EvaluationSettings(rules.make(), max_turns=rules.max_turns)
        assert candidates.endpoint(run, policy, settings, 1e-4).name == own(run)
    assert [request["temperature"] for request in server.requests] == [0.0] * CANARIES
