"""Nothing that is tested was taught, drawn for training or used for selection; hand-made leaks are found."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from cdk_app.audit import audit_contamination
from tests.training.test_run_folder import SMOKE
from training import lineage, prepare, recipe, splits
from training.audits import ancestry, contamination
from training.audits.ancestry import Ancestry, Body
from training.environments.maze import MazeEnvironment
from training.errors import ConfigError, DataError
from training.files import read_json, write_json
from training.mazes import Maze, generate, published

UNKNOWN = Ancestry(False, "nobody asked", "", ())
ENVIRONMENT = MazeEnvironment(squares_per_move=2)
CLEAN = [generate(seed) for seed in range(2000, 2020)]


@pytest.fixture(scope="module")
def rows():
    return dict(splits.of_recipe(recipe.load(SMOKE)))


def row(maze, split="train"):
    return splits.row_of(ENVIRONMENT, maze, split, origin="by hand")


def count(found, split, seen_in):
    """(exact, layout, up to symmetry, layout up to symmetry)"""
    one = next(c for c in found.comparisons if (c.split, c.seen_in) == (split, seen_in))
    return one.exact, one.same_layout, one.same_up_to_symmetry, one.same_layout_up_to_symmetry


def test_a_fresh_run_is_clean_and_its_mirrored_rows_are_declared(rows):
    found = contamination.audit(rows, UNKNOWN)
    assert found.passed
    assert len(found.comparisons) == 4 + 3 + 2 + 1
    assert all(count(found, c.split, c.seen_in) == (0, 0, 0, 0) for c in found.comparisons)
    mirrored = sum(row["variant"] == "mirrored" for row in rows["ood"])
    assert [(c.split, c.seen_in, c.declared) for c in found.comparisons if c.declared] == [
        ("ood", "test", mirrored)
    ]


@pytest.mark.parametrize(
    ("leak", "kinds"),
    [
        (lambda maze: maze, (1, 1, 1, 1)),
        (lambda maze: Maze(maze.rows, maze.goal, maze.start), (0, 1, 0, 1)),
        (lambda maze: maze.transformed(3), (0, 0, 1, 1)),
        (lambda maze: replace(maze, palette="dusk"), (1, 1, 1, 1)),
        (lambda maze: Maze(maze.rows, maze.goal, maze.start).transformed(6), (0, 0, 0, 1)),
    ],
    ids=["exact", "swapped", "turned", "recoloured", "turned-and-swapped"],
)
@pytest.mark.parametrize("split", ["dev", "test", "test-512"])
def test_a_leak_into_training_is_found_in_every_disguise(rows, split, leak, kinds):
    leaked = row(leak(splits.row_task(rows[split][5])))
    found = contamination.audit(rows | {"train": (*rows["train"], leaked)}, UNKNOWN)
    assert count(found, split, "train") == kinds
    assert any(fault.startswith(f"{split} repeats train: ") for fault in found.faults)
    with pytest.raises(DataError, match="repeats train"):
        found.require()


def test_a_selection_split_that_holds_the_test_is_found(rows):
    found = contamination.audit(rows | {"dev": (*rows["dev"], row(published("easy")[9], "dev"))}, UNKNOWN)
    assert found.faults == (
        "test repeats dev: 1 exact, 1 same layout, 1 same up to symmetry, 1 same layout up to symmetry",
    )


def test_a_copy_of_the_test_among_the_mirrored_rows_is_no_mirror_image(rows):
    copied = splits.row_of(ENVIRONMENT, published("easy")[0], "ood", origin="by hand", variant="mirrored")
    found = contamination.audit(rows | {"ood": (*rows["ood"], copied)}, UNKNOWN)
    assert count(found, "ood", "test") == (1, 1, 1, 1)
    assert not found.passed


def test_rows_that_are_there_twice_are_found(rows):
    turned = splits.row_task(rows["train"][0]).transformed(2)
    found = contamination.audit(rows | {"train": (*rows["train"], row(turned))}, UNKNOWN)
    assert found.faults == ("1 rows of train are there twice",)


def test_a_file_that_holds_a_row_twice_is_not_read(rows, tmp_path):
    splits.write(tmp_path / "dev.jsonl", (*rows["dev"], rows["dev"][0]))
    with pytest.raises(DataError, match=f"holds task {rows['dev'][0]['digest']} twice"):
        splits.read(tmp_path / "dev.jsonl")


def taught(*mazes, symmetries=False):
    body = Body("school", [ancestry.prints(maze) for maze in (*CLEAN, *mazes)], symmetries)
    return Ancestry(True, "", "", (body,))


def test_an_exact_task_in_the_ancestry_is_refused_and_a_layout_shown(rows):
    maze = published("easy")[4]
    found = contamination.audit(rows, taught(maze))
    assert count(found, "test", "school") == (1, 1, 1, 1)
    assert found.faults == ("1 of 64 rows of test were taught in 'school'",)
    found = contamination.audit(rows, taught(Maze(maze.rows, maze.goal, maze.start)))
    assert count(found, "test", "school") == (0, 1, 0, 1)
    assert found.passed
    assert contamination.audit(rows, taught(splits.row_task(rows["train"][0]))).passed


def test_what_was_taught_in_all_symmetries_is_known_exactly_in_each(rows):
    turned = published("easy")[4].transformed(3)
    assert count(contamination.audit(rows, taught(turned)), "test", "school") == (0, 0, 1, 1)
    found = contamination.audit(rows, taught(turned, symmetries=True))
    assert count(found, "test", "school") == (1, 1, 1, 1)
    assert not found.passed


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def make(tmp_path, base):
    run = tmp_path / "run"
    prepare.prepare(recipe.load(SMOKE), run, base_dir=base, image="test")
    return run


def test_prepare_refuses_a_base_that_was_taught_the_test_and_leaves_nothing(tmp_path, base):
    ancestry.declare(base, taught(published("easy")[4]).bodies)
    with pytest.raises(DataError, match="1 of 64 rows of test were taught in 'school'"):
        make(tmp_path, base)
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_run_keeps_its_audits_and_what_they_looked_at(tmp_path, base):
    ancestry.declare(base, taught().bodies)
    run = make(tmp_path, base)
    (base / ancestry.DECLARATION).unlink()
    audits = lineage.read(run)["audits"]
    assert audits["contamination"]["passed"] is audits["reward"]["passed"] is True
    (school,) = audits["contamination"]["taught"]
    assert (school["name"], school["tasks"], school["symmetries"]) == ("school", 20, False)
    assert school["sha256"] == taught().bodies[0].digest
    said = CliRunner().invoke(audit_contamination, [str(run), "--json"])
    assert said.exit_code == 0
    assert json.loads(said.stdout) == audits["contamination"] == lineage.read(run)["audits"]["contamination"]
    assert "test      " in CliRunner().invoke(audit_contamination, [str(run)]).stdout


def test_an_easier_test_is_refused_though_every_digest_agrees(tmp_path, base):
    run = make(tmp_path, base)
    easier = [row(maze, "test") for maze in CLEAN if maze.moves == 12]
    digest = splits.write(run / "data" / "test.jsonl", easier)
    with pytest.raises(DataError, match="was changed"):
        contamination.audit_run(run)
    lineage.update(run, data={**lineage.read(run)["data"], "test": digest})
    said = CliRunner().invoke(audit_contamination, [str(run)])
    assert said.exit_code == 1
    assert "✗ the rows of test are not those that the recipe draws" in said.stdout
    assert lineage.read(run)["audits"]["contamination"]["passed"] is False


def test_every_read_of_a_split_asks_the_manifest(tmp_path, base):
    run = make(tmp_path, base)
    assert lineage.read(run)["data"].keys() == {"train", "dev", "test", "test-512", "ood"}
    for name in lineage.read(run)["data"]:
        assert len(lineage.read_split(run, name)) > 0
        splits.write(run / "data" / f"{name}.jsonl", [row(maze, name) for maze in CLEAN])
        splits.read(run / "data" / f"{name}.jsonl")
        with pytest.raises(DataError, match=f"split {name}.jsonl was changed"):
            lineage.read_split(run, name)
    with pytest.raises(DataError, match="no split 'exam'"):
        lineage.read_split(run, "exam")


def test_a_run_trains_on_and_plays_what_its_recipe_draws(tmp_path, base):
    """Rows that are exchanged with their digest while a run trains can be restored before its gate."""
    run = make(tmp_path, base)
    for name, leaked in (("train", "test-512"), ("dev", "test")):
        assert lineage.read_drawn(run, name) == lineage.read_split(run, name)
        rows = [{**one, "split": name} for one in lineage.read_split(run, leaked)]
        digest = splits.write(run / "data" / f"{name}.jsonl", rows)
        lineage.update(run, data={**lineage.read(run)["data"], name: digest})
        with pytest.raises(DataError, match=f"rows of {name} of run .* are not those that its recipe draws"):
            lineage.read_drawn(run, name)


def test_a_changed_list_of_what_was_taught_is_refused(tmp_path):
    ancestry.declare(tmp_path, taught().bodies)
    assert ancestry.read(tmp_path).bodies[0].prints == taught().bodies[0].prints
    listing = tmp_path / "ancestry-school.txt"
    listing.write_text(listing.read_text().partition("\n")[2])
    with pytest.raises(DataError, match="was changed"):
        ancestry.read(tmp_path)
    listing.unlink()
    with pytest.raises(DataError, match=r"names ancestry-school\.txt"):
        ancestry.read(tmp_path)


def test_an_undeclared_ancestry_is_shown_with_as_many_draws_as_it_may_have_had(rows, tmp_path):
    stated = read_json(ancestry.shipped("visgym-mixed-qwen3vl"))
    stated["estimate"]["draws"] = [500, 4000]
    write_json(tmp_path / ancestry.DECLARATION, stated)
    found = contamination.audit(rows, ancestry.read(tmp_path))
    assert found.passed
    assert not found.declared
    assert "not listed" in found.why
    few, many = (count(found, "test", f"{n} fresh draws") for n in ("500", "4,000"))
    assert all(one <= other for one, other in zip(few, many, strict=True))
    # 64 tasks, 4,000 draws among 100,352 layouts: 2.5 of the same layout and 17.5 up to symmetry expected.
    assert 0 <= many[1] <= 9
    assert 5 <= many[3] <= 31


def test_a_base_without_a_declaration_says_so(tmp_path):
    found = ancestry.read(tmp_path)
    assert (found.declared, found.bodies) == (False, ())
    assert "no ancestry.json" in found.why


@pytest.mark.parametrize("text", ["{", '{"declared": false}', '{"declared": false, "why": "x", "dat": []}'])
def test_a_declaration_that_cannot_be_read_is_an_error(tmp_path, text):
    (tmp_path / ancestry.DECLARATION).write_text(text)
    with pytest.raises((DataError, ConfigError), match=r"ancestry\.json"):
        ancestry.read(tmp_path)
