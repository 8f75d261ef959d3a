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
from tests.training import gate_run
from tests.training.gate_run import edit, evaluate, forge
from training import lineage, prepare, recipe, report, seal, splits, sweep
from training.errors import ConfigError, DataError
from training.gate import evidence

BASE = [seal.label("baseline", split) for split in seal.SEALED]


@pytest.fixture(scope="module")
def chosen() -> recipe.Recipe:
    return recipe.load(gate_run.RECIPE, gate_run.SMALL)


def able(chosen: recipe.Recipe, test: int, test_512: int, ood: int) -> gate_run.Solves:
    """Solves so many of each sealed split, and all of dev but the first."""
    built = splits.of_recipe(chosen)
    rows = (*built.test[:test], *built.test_512[:test_512], *built.ood[:ood], *built.dev[1:])
    return {row["digest"] for row in rows}.__contains__


@pytest.fixture(scope="module")
def start(chosen, tmp_path_factory) -> Callable[..., Path]:
    """Makes a run that has not been trained."""
    base = tmp_path_factory.mktemp("base")
    (base / "config.json").write_text("{}")

    def prepared(run_dir: Path, seed: int = 0) -> Path:
        prepare.prepare(sweep.seeded(chosen, seed), run_dir, base_dir=base, image="test")
        return run_dir

    return prepared


def base_of(run_dir: Path) -> str:
    return "base:" + lineage.read(run_dir)["base"]["digest"][:16]


def finish(run_dir: Path, chosen: recipe.Recipe, solved: int) -> Path:
    """Plays and trains as a run does; its adapter solves so many of the published 64."""
    before, after = able(chosen, 32, 2, 0), able(chosen, solved, 24, 6)
    adapter = gate_run._train(run_dir, f"of {run_dir.name}")
    lineage.update(run_dir, adapter=adapter)
    evaluate(run_dir, "dev", "dev-0000", base_of(run_dir), before)
    evaluate(run_dir, "dev", "dev-0002", "adapter:2", lambda digest: True)
    for split in seal.SEALED:
        evaluate(run_dir, split, seal.label("baseline", split), base_of(run_dir), before)
        evaluate(run_dir, split, seal.label("final", split), gate_run.candidate(adapter), after)
    (run_dir / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, "train_solve_rate": 0.5}) + "\n" for step in (1, 2, 2))
    )
    lineage.update(run_dir, finished=lineage.now())
    return run_dir


@pytest.fixture(scope="module")
def runs(chosen, start, tmp_path_factory) -> dict[int, Path]:
    """Two finished seeds, which solve 60 and 64 of the published 64, and one that was cut off."""
    folder = tmp_path_factory.mktemp("runs")
    found = {seed: start(folder / f"s-seed{seed}", seed) for seed in (0, 1, 2)}
    finish(found[0], chosen, 60)
    finish(found[1], chosen, 64)
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
    json.dumps(found, allow_nan=False)


def test_each_run_is_paired_with_its_own_base(chosen, runs):
    one = sweep.collect("s", chosen, runs)["runs"][0]
    assert (one["splits"]["test"]["won"], one["splits"]["test"]["lost"]) == (28, 0)
    assert one["dev"] == [[0, 0.75], [2, 1.0]]
    assert one["train"] == [[1, 0.5], [2, 0.5]]


@pytest.fixture
def copied(runs, tmp_path) -> Path:
    return Path(shutil.copytree(runs[1], tmp_path / "s-seed1"))


def swap(run_dir: Path, other: Path, label: str, note: list[str]) -> None:
    """The records of another run's play in the place of a run's own, and the digests renewed."""
    stolen = [
        json.loads(line) for line in (other / "evaluations" / f"{label}.jsonl").read_text().splitlines()
    ]
    forge(run_dir, label, lambda lines: lines.__setitem__(slice(None), stolen), note)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda run, other: edit(
                run / "run.json", lambda m: m["evaluations"]["final"].update(solve_rate=0.99)
            ),
            "final is on record with solve_rate 0.99",
        ),
        (
            lambda run, other: edit(
                run / "run.json", lambda m: m["evaluations"]["dev-0002"].update(low=0.99)
            ),
            "dev-0002 is on record with low 0.99",
        ),
        (lambda run, other: swap(run, other, "final", []), "final.jsonl was changed"),
        (lambda run, other: swap(run, other, "final", ["manifest"]), "the seal noted"),
        (lambda run, other: swap(run, other, "final", ["seal"]), "the manifest noted"),
        (
            lambda run, other: swap(run, other, "final", ["seal", "manifest"]),
            "final.jsonl was played by adapter",
        ),
        (
            lambda run, other: forge(run, "final", lambda lines: lines.pop(), ["seal", "manifest"]),
            "final holds 63 episodes, of 63 of the 64 tasks of test",
        ),
        (
            lambda run, other: edit(run / "run.json", lambda m: m["evaluations"].pop("final")),
            "final was finished on test, but its evaluation is not on record",
        ),
        (
            lambda run, other: edit(run / "run.json", lambda m: m["evaluations"]["final"].update(samples=3)),
            "final is of 3 samples at temperature 0, and cannot decide",
        ),
        (lambda run, other: edit(run / "run.json", lambda m: m.pop("attempts")), "run.json: no attempts"),
        (lambda run, other: (run / "metrics.jsonl").unlink(), "metrics.jsonl is not as a run writes it"),
        (
            lambda run, other: (run / "metrics.jsonl").write_text("{}\n"),
            "metrics.jsonl is not as a run writes it",
        ),
        (lambda run, other: (run / "cost.json").write_text("{"), "cost.json is not as it was written"),
        (lambda run, other: (run / "cost.json").write_text("{}"), "cost.json is not as it was measured"),
        (
            lambda run, other: (run / "run.json").write_text("{"),
            "files of run 's-seed1' are not as a run writes",
        ),
    ],
)
def test_a_seed_is_evidence_that_a_gate_would_take(chosen, runs, copied, change, told):
    change(copied, runs[0])
    with pytest.raises(DataError, match=told):
        sweep.collect("s", chosen, {0: runs[0], 1: copied})


def test_a_step_without_its_rate_is_no_point_of_the_curve(chosen, copied):
    (copied / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "train_solve_rate": NaN}\n')
    assert sweep.collect("s", chosen, {1: copied})["runs"][0]["train"] == []


def test_a_seed_is_no_link_or_copy_of_another(chosen, runs, tmp_path):
    link = tmp_path / "s-seed1"
    link.symlink_to(runs[1])
    with pytest.raises(DataError, match="'s-seed1' is a link, no run of its own"):
        sweep.collect("s", chosen, {1: link})
    copy = Path(shutil.copytree(runs[1], tmp_path / "s-seed4"))
    with pytest.raises(ConfigError, match="'s-seed4' is there and is not seed 4 of this recipe"):
        sweep.collect("s", chosen, {1: runs[1], 4: copy})
    for name in ("run.json", "recipe.json"):
        for change in (lambda it: it.update(run="s-seed4"), reseeded):
            edit(copy / name, lambda it, change=change: change(it))
    sweep.require_own(chosen, {4: copy})
    with pytest.raises(DataError, match="the rows of train are not those that the recipe draws"):
        sweep.collect("s", chosen, {1: runs[1], 4: copy})


def reseeded(found) -> None:
    """Seed 4 in a recipe, or in the recipe of a manifest."""
    of = found.get("recipe", found)
    of.pop("run", None)
    of["seed"] = of["data"]["seed"] = 4


def test_seeds_of_one_adapter_or_of_two_bases_are_no_sweep(chosen, runs, monkeypatch):
    def same(found):
        found.weights = read(runs[0]).weights
        return found

    def other_base(found):
        found.manifest["base"]["digest"] = found.manifest["base"]["digest"][:16] + "0" * 48
        return found

    read = evidence.read
    for change, told in ((same, "hold the same adapter"), (other_base, "differ in more than their seed")):

        def altered(run_dir, change=change):
            found = read(run_dir)
            return change(found) if found.run == "s-seed1" else found

        monkeypatch.setattr(evidence, "read", altered)
        with pytest.raises(ConfigError, match=told):
            sweep.collect("s", chosen, runs)


def test_further_plays_are_told(chosen, runs, copied, tmp_path):
    own = gate_run.candidate(lineage.read(copied)["adapter"])
    assert sweep.collect("s", chosen, {1: copied})["runs"][0]["looks"] == []
    evaluate(copied, "test", "lucky", own, lambda digest: True, again="we hoped <b>")
    found = sweep.collect("s", chosen, {1: copied})
    (tmp_path / sweep.FILE).write_text(json.dumps(found))
    page = report.write_sweep(tmp_path).read_text()
    assert f"<li>seed 1: {own} on test as lucky, because: we hoped &lt;b&gt;</li>" in page


def test_a_dev_evaluation_of_the_users_is_no_step(chosen, runs, copied):
    evaluate(copied, "dev", "dev-dev", "adapter:9", lambda digest: False)
    assert sweep.collect("s", chosen, {1: copied})["runs"] == sweep.collect("s", chosen, {1: runs[1]})["runs"]


def test_a_policy_that_nobody_verified_is_no_step(chosen, runs, copied):
    evaluate(copied, "dev", "dev-0004", "unverified:http://there", lambda digest: True)
    assert sweep.collect("s", chosen, {1: copied})["runs"][0]["dev"] == [[0, 0.75], [2, 1.0]]


def test_one_seed_has_no_interval():
    alone = sweep.spread([0.5])
    assert (alone["mean"], alone["low"], alone["high"]) == (0.5, None, None)


def test_a_run_is_finished_only_with_every_sealed_play(start, tmp_path):
    assert not sweep.is_finished(tmp_path)
    run_dir = start(tmp_path / "run")
    assert not sweep.is_finished(run_dir)
    lineage.update(run_dir, finished=lineage.now())
    for when in ("baseline", "final"):
        assert not sweep.is_finished(run_dir)
        for split in seal.SEALED:
            evaluate(run_dir, split, seal.label(when, split), when, lambda digest: False)
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


def test_the_page_stands_odd_commits(chosen, runs, tmp_path):
    found = sweep.collect("s", chosen, runs)
    for commit in (7, "\ud800"):
        found["runs"][0]["commit"] = commit
        (tmp_path / sweep.FILE).write_text(json.dumps(found))
        assert f"<code>{commit}</code>".encode(errors="backslashreplace") in (
            report.write_sweep(tmp_path).read_bytes()
        )


def test_a_run_of_another_recipe_is_not_taken_for_a_seed(chosen, start, tmp_path):
    run_dir = start(tmp_path / "run")
    sweep.require_own(chosen, {0: run_dir, 1: tmp_path / "nothing"})
    patient = chosen.model_copy(update={"recovery": recipe.Recovery(max_attempts=99)})
    sweep.require_own(patient, {0: run_dir})
    (tmp_path / "nowhere").symlink_to("nothing")
    with pytest.raises(ConfigError, match="'nowhere' is there and is not seed 2"):
        sweep.require_own(chosen, {2: tmp_path / "nowhere"})
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
    run_dir = start(tmp_path / "run", 5)
    sweep_command.adopt_base(run_dir, runs[0])
    labels = ["dev-0000", "baseline", "baseline-test-512", "baseline-ood"]
    for label in labels:
        name = f"evaluations/{label}.jsonl"
        assert (run_dir / name).read_bytes() == (runs[0] / name).read_bytes()
    assert lineage.read(run_dir)["base_played_by"] == {"run": "s-seed0", "labels": labels}
    assert not (run_dir / "evaluations" / "final.jsonl").exists()
    # The trainer continues such a play, and finds that nothing is left of it.
    evaluate(run_dir, "test", "baseline", base_of(run_dir), lambda digest: True)
    assert lineage.read(run_dir)["evaluations"]["baseline"]["solved"] == 32


@pytest.mark.parametrize("label", ["dev-0000", *BASE])
def test_a_play_of_the_base_is_taken_over_as_it_was_sealed_or_not_at_all(start, copied, tmp_path, label):
    """The other run's seal would go with it: here it would be sealed anew, whatever it holds."""
    run_dir, path = start(tmp_path / "run", 5), copied / "evaluations" / f"{label}.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match=rf"{label}.jsonl is not what was recorded on"):
        sweep_command.adopt_base(run_dir, copied)
    with lineage.changing(copied) as manifest:
        del manifest["evaluations"][label]
        manifest["test_plays"] = [play for play in manifest["test_plays"] if play["label"] != label]
    sweep_command.adopt_base(run_dir, copied)
    assert not (run_dir / "evaluations" / path.name).exists()
    assert label not in lineage.read(run_dir)["base_played_by"]["labels"]


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
                    finish(root / r.run, chosen, {"s-seed2": 62, "s-seed3": 61}[r.run])

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
    order = Order(chosen, gate_run.RECIPE, "paper", None, None, SimpleNamespace(runs=root))
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
    assert found["spread"]["test"]["final"]["values"] == [60 / 64, 1.0, 62 / 64, 61 / 64]
    performed.clear()
    for seeds in ("0,1,2,3", "1"):  # one that was begun stays in the result
        sweep_command.command.main(["smoke", "--seeds", seeds, "--name", "s"], standalone_mode=False)
        assert performed == []
        again = json.loads((root / "sweeps" / "s" / "sweep.json").read_text())
        assert again == found
