"""A sweep says what its runs say, leaves out what is not finished, and continues where it was."""

import json
import math
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from rehearsal import sweep as sweep_command
from rehearsal.session import Order
from tests.training.conftest import Scripted, oracle
from training import lineage, prepare, recipe, report, seal, splits, sweep
from training.errors import ConfigError, DataError
from training.evaluate import EvaluationSettings, play, summarize
from training.protocol import STOP

RECIPES = Path(__file__).parents[2] / "recipes"
SMALL = {"data.train_mazes": 12, "data.dev_mazes": 3, "data.test_512_mazes": 4, "data.ood_mazes": 3}


@pytest.fixture(scope="module")
def chosen() -> recipe.Recipe:
    return recipe.load(RECIPES / "maze-smoke.toml", SMALL)


@pytest.fixture(scope="module")
def start(chosen, tmp_path_factory) -> Callable[..., Path]:
    """Makes a run that has not been trained: copies of one, because its mazes do not matter here."""
    first = tmp_path_factory.mktemp("first")
    (first / "config.json").write_text("{}")
    prepare.prepare(chosen, first / "run", base_dir=first, image="test")

    def copy(run_dir: Path, seed: int = 0) -> Path:
        shutil.copytree(first / "run", run_dir)
        recipe.write_resolved(sweep.seeded(chosen, seed), run_dir / "recipe.json")
        return run_dir

    return copy


def evaluate(run_dir: Path, split: str, label: str, solved: int) -> None:
    """Play a split as the trainer does, with a policy that solves the first `solved` tasks."""
    env = recipe.read_resolved(run_dir / "recipe.json").environment
    tasks = [splits.row_task(row) for row in lineage.read_split(run_dir, split)]
    able = {task.digest for task in tasks[:solved]}
    policy = "base" if label.startswith("baseline") else "adapter"
    seal.check(run_dir, policy, split, label)
    settings = EvaluationSettings(env.make(), max_turns=env.max_turns, reward=env.reward, policy=policy)
    path = run_dir / "evaluations" / f"{label}.jsonl"
    player = Scripted(tasks, lambda maze, at, turn: oracle(maze, at, turn) if maze.digest in able else STOP)
    records = play(player, tasks, settings, records_path=path)
    lineage.record_evaluation(run_dir, label, path, {"split": split, **summarize(records).to_json()})
    seal.log(run_dir, policy, split, label, path)


def finish(run_dir: Path, solved: int) -> Path:
    evaluate(run_dir, "dev", "dev-0000", 1)
    evaluate(run_dir, "dev", "dev-0002", 3)
    for split, (before, after) in {"test": (32, solved), "test-512": (2, 4), "ood": (0, 3)}.items():
        evaluate(run_dir, split, seal.label("baseline", split), before)
        evaluate(run_dir, split, seal.label("final", split), after)
    (run_dir / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, "train_solve_rate": 0.5}) + "\n" for step in (1, 2, 2))
    )
    lineage.update(run_dir, finished=lineage.now())
    return run_dir


@pytest.fixture(scope="module")
def runs(start, tmp_path_factory) -> dict[int, Path]:
    """Two finished seeds, which solve 60 and 64 of the published 64, and one that was cut off."""
    folder = tmp_path_factory.mktemp("runs")
    found = {seed: start(folder / f"s-seed{seed}", seed) for seed in (0, 1, 2)}
    finish(found[0], 60)
    finish(found[1], 64)
    return found


def test_mean_worst_and_interval_over_the_finished_seeds(chosen, runs):
    found = sweep.collect("s", chosen, runs)
    assert (found["seeds"], found["missing"]) == ([0, 1, 2], [2])
    final = found["spread"]["test"]["final"]
    assert final["values"] == [60 / 64, 1.0]
    assert final["mean"] == pytest.approx(62 / 64)
    assert final["worst"] == 60 / 64
    # Student's t for one degree of freedom at 95 % is 12.706; the rate cannot pass 1.
    half = 12.706 * (2 / 64) * math.sqrt(2) / math.sqrt(2)
    assert final["low"] == pytest.approx(62 / 64 - half, abs=1e-3)
    assert final["high"] == 1.0
    gain = found["spread"]["test"]["gain"]
    assert gain["values"] == [28 / 64, 32 / 64]
    assert found["spread"]["ood"]["baseline"]["values"] == [0.0, 0.0]


def test_each_run_is_paired_with_its_own_base(chosen, runs):
    one = sweep.collect("s", chosen, runs)["runs"][0]
    assert (one["splits"]["test"]["won"], one["splits"]["test"]["lost"]) == (28, 0)
    assert one["dev"] == [[0, pytest.approx(1 / 3)], [2, 1.0]]
    assert one["train"] == [[1, 0.5], [2, 0.5]]


@pytest.fixture
def copied(runs, tmp_path) -> Path:
    return Path(shutil.copytree(runs[0], tmp_path / "s-seed0"))


def test_figures_are_those_of_the_records_whatever_the_manifest_says(chosen, runs, copied):
    with lineage.changing(copied) as manifest:
        for label in ("final", "dev-0002"):
            manifest["evaluations"][label] |= {"solved": 1, "solve_rate": 0.99, "low": 0.98, "high": 1.0}
    assert sweep.collect("s", chosen, {0: copied}) == sweep.collect("s", chosen, {0: runs[0]})


@pytest.mark.parametrize("label", ["final", "baseline-ood", "dev-0002"])
@pytest.mark.parametrize("forgotten", [False, True])
def test_records_that_were_changed_are_refused(chosen, copied, label, forgotten):
    path = copied / "evaluations" / f"{label}.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    if forgotten and not label.startswith("dev"):
        with lineage.changing(copied) as manifest:
            del manifest["evaluations"][label]
    with pytest.raises(DataError, match=rf"{label}\.jsonl is not what was recorded on 20"):
        sweep.collect("s", chosen, {0: copied})
    path.unlink()
    with pytest.raises(DataError, match=rf"{label}\.jsonl is not what was recorded on 20"):
        sweep.collect("s", chosen, {0: copied})


def test_a_dev_evaluation_of_the_users_is_no_step(chosen, runs, copied):
    shutil.copyfile(copied / "evaluations" / "dev-0002.jsonl", copied / "evaluations" / "dev-dev.jsonl")
    with lineage.changing(copied) as manifest:
        manifest["evaluations"]["dev-dev"] = manifest["evaluations"]["dev-0002"]
    assert sweep.outcome(0, copied)["dev"] == sweep.outcome(0, runs[0])["dev"]


def test_one_seed_has_no_interval():
    alone = sweep.spread([0.5])
    assert (alone["mean"], alone["low"], alone["high"]) == (0.5, None, None)


def test_a_run_is_finished_only_with_every_sealed_play(start, tmp_path):
    assert not sweep.is_finished(tmp_path)
    run_dir = start(tmp_path / "run")
    assert not sweep.is_finished(run_dir)
    lineage.update(run_dir, finished=lineage.now())
    for split in seal.SEALED:
        evaluate(run_dir, split, seal.label("baseline", split), 1)
    assert not sweep.is_finished(run_dir)
    for split in seal.SEALED:
        evaluate(run_dir, split, seal.label("final", split), 1)
    assert sweep.is_finished(run_dir)


def test_a_seed_changes_what_is_drawn_and_nothing_else(chosen):
    one, other = sweep.seeded(chosen, 1), sweep.seeded(chosen, 2)
    assert (one.seed, one.data.seed, other.seed, other.data.seed) == (1, 1, 2, 2)
    assert sweep.digest(one) == sweep.digest(other)
    patient = chosen.model_copy(update={"recovery": recipe.Recovery(max_attempts=99)})
    assert sweep.digest(patient) == sweep.digest(chosen)
    changed = chosen.model_copy(update={"name": "other"})
    with pytest.raises(ConfigError, match="another recipe"):
        sweep.require_same(changed, {"name": "s", "recipe_digest": sweep.digest(chosen)})


def test_the_page_shows_every_seed_and_names_what_is_missing(chosen, runs, tmp_path):
    (tmp_path / sweep.FILE).write_text(json.dumps(sweep.collect("s", chosen, runs)))
    page = report.write_sweep(tmp_path).read_text()
    for text in ("60 of 64", "64 of 64", "Seed 2 has not come to its end", "96.9%", "seed 1", "McNemar"):
        assert text in page
    (tmp_path / sweep.FILE).write_text(json.dumps(sweep.collect("s", chosen, {7: tmp_path})))
    assert "Seed 7 has not come to its end" in report.write_sweep(tmp_path).read_text()


def test_the_page_stands_odd_commits(chosen, runs, copied, tmp_path):
    for commit in (7, "\ud800"):
        lineage.update(copied, commit=commit)
        found = sweep.collect("s", chosen, {0: copied, 1: runs[1]})
        (tmp_path / sweep.FILE).write_text(json.dumps(found))
        assert f"<code>{commit}</code>".encode(errors="backslashreplace") in (
            report.write_sweep(tmp_path).read_bytes()
        )


def test_a_run_of_another_recipe_is_not_taken_for_a_seed(chosen, start, tmp_path):
    run_dir = start(tmp_path / "run")
    sweep.require_own(chosen, {0: run_dir, 1: tmp_path / "nothing"})
    with pytest.raises(ConfigError, match="'run' is there and is not seed 1"):
        sweep.require_own(chosen, {1: run_dir})
    (run_dir / "recipe.json").unlink()
    with pytest.raises(ConfigError, match="not seed 0"):
        sweep.require_own(chosen, {0: run_dir})


@pytest.mark.parametrize("text", ["", "0,", "0,0", "-1", "a", "0;1", "1.5"])
def test_seeds_are_different_whole_numbers(text):
    with pytest.raises(ConfigError, match="--seeds"):
        sweep_command.parse_seeds(text)


def test_the_bases_plays_are_taken_over_from_a_run_of_the_same_base(start, runs, tmp_path):
    run_dir = start(tmp_path / "run")
    sweep_command.adopt_base(run_dir, runs[0])
    labels = ["dev-0000", "baseline", "baseline-test-512", "baseline-ood"]
    for label in labels:
        name = f"evaluations/{label}.jsonl"
        assert (run_dir / name).read_bytes() == (runs[0] / name).read_bytes()
    assert lineage.read(run_dir)["base_played_by"] == {"run": "s-seed0", "labels": labels}
    assert not (run_dir / "evaluations" / "final.jsonl").exists()
    # The trainer continues such a play, and finds that nothing is left of it.
    evaluate(run_dir, "test", "baseline", 64)
    assert lineage.read(run_dir)["evaluations"]["baseline"]["solved"] == 32


def test_no_play_is_taken_over_from_a_run_of_another_base(start, runs, tmp_path):
    run_dir = start(tmp_path / "run")
    lineage.update(run_dir, base={"folder": "models/other", "digest": "0" * 64})
    sweep_command.adopt_base(run_dir, runs[0])
    assert not (run_dir / "evaluations").exists()
    assert "base_played_by" not in lineage.read(run_dir)


def test_a_repeated_sweep_runs_only_what_is_not_finished(chosen, start, runs, monkeypatch):
    """The stages are real but for the session, which notes what it would perform and finishes it."""
    root = runs[0].parent
    performed: list[str] = []

    class Session:
        rehearsal = SimpleNamespace(run="")
        shown = SimpleNamespace(timings=list)

        def run(self, steps, r=None):
            performed.extend(title for title, _ in steps if "Seed" in title)
            for title, _ in steps:
                if "make mazes" in title:
                    start(root / r.run, 3)
                if "train" in title:
                    finish(root / r.run, 62)

        def require_clean(self):
            pass

    @contextmanager
    def begun(order, name, console):
        yield Session()

    monkeypatch.setattr(sweep_command, "begun", begun)

    def run_of(session, recipe, run):
        return SimpleNamespace(run=run, run_dir=root / run)

    monkeypatch.setattr(sweep_command, "replace", run_of)
    monkeypatch.setattr(sweep_command.stages, "forget_scratch", lambda r: None)
    order = Order(chosen, RECIPES / "maze-smoke.toml", "paper", None, None, SimpleNamespace(runs=root))
    monkeypatch.setattr(Order, "read", lambda *arguments: order)
    arguments = ["smoke", "--seeds", "0,1,2,3", "--name", "s"]
    sweep_command.command.main(arguments, standalone_mode=False)
    assert performed == [
        "Seed 2: evaluate, train with SkyRL, evaluate",
        "Seed 3: make mazes and run folder",
        "Seed 3: evaluate, train with SkyRL, evaluate",
    ]
    found = json.loads((root / "sweeps" / "s" / "sweep.json").read_text())
    assert found["missing"] == []
    assert (runs[2] / "report.html").is_file()
    assert (root / "s-seed3" / "report.html").is_file()
    assert found["spread"]["test"]["final"]["values"] == [60 / 64, 1.0, 62 / 64, 62 / 64]
    performed.clear()
    for seeds in ("0,1,2,3", "1"):  # one that was begun stays in the result
        sweep_command.command.main(["smoke", "--seeds", seeds, "--name", "s"], standalone_mode=False)
        assert performed == []
        again = json.loads((root / "sweeps" / "s" / "sweep.json").read_text())
        assert again == found
