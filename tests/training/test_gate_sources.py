"""What a run rests on: its splits, audits, ancestry, adapter and manifest are not believed but looked at."""

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from cdk_app.audit import audit_contamination, audit_reward
from cdk_app.gate import _require_same_lessons
from tests.training.gate_run import RECIPE, SMALL, edit, make, one_in, refused
from training import exports, lineage, prepare, recipe, splits
from training.audits import ancestry, contamination
from training.errors import ConfigError, DataError
from training.files import tree_digest
from training.gate.judge import judge


def test_what_is_no_file_among_the_evaluations_is_refused(run):
    os.mkfifo(run / "evaluations" / "waiting.jsonl")
    (run / "evaluations" / "nowhere.jsonl").symlink_to("nothing")
    told = refused(run, "evaluations/waiting.jsonl is no file of its own")
    assert "evaluations/nowhere.jsonl is no file of its own" in told


@pytest.mark.parametrize("part", ["recipe.json", "data", "data/test.jsonl", "ancestry", "evaluations"])
def test_what_is_read_lies_in_the_run(run, tmp_path, part):
    """Where a link leads can be changed without a trace, and a pipe is read for ever."""
    (run / part).rename(tmp_path / "elsewhere")
    (run / part).symlink_to(tmp_path / "elsewhere")
    refused(run, f"{part} is no file of its own")
    (run / part).unlink()
    os.mkfifo(run / part)
    with pytest.raises((DataError, ConfigError)):
        judge([run])


def test_no_decision_is_looked_for_in_a_pipe(run, monkeypatch):
    """Nobody writes into it: whoever reads it waits for ever."""
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    read = Path.read_bytes

    def of_files(path):
        return pytest.fail(f"{path} is read") if path.is_fifo() else read(path)

    monkeypatch.setattr(Path, "read_bytes", of_files)
    with pytest.raises(DataError, match=r"may still stand: .*run\.json is no file of its own"):
        judge([run])


@pytest.mark.parametrize(
    ("audit", "change", "told"),
    [
        ("reward", lambda it: it.clear() or it.update(passed=True), "gives another earned, environment, "),
        ("reward", lambda it: it.update(faults=["pays for talk"]), "gives another faults"),
        ("reward", lambda it: it["earned"][0].update(score=0.5), "gives another earned"),
        ("reward", lambda it: it.update(approved="yes"), "gives another approved"),
        ("reward", lambda it: it.update(passed=1), "did not pass"),
        ("contamination", lambda it: it.update(faults=["test repeats train"]), "gives another faults"),
        ("contamination", lambda it: it.update(approved="yes"), "gives another approved"),
    ],
)
def test_an_audit_is_made_again_not_believed(run, audit, change, told):
    edit(run / "run.json", lambda manifest: change(manifest["audits"][audit]))
    refused(run, rf"its {audit} audit(, made again,)? {told}")


@pytest.mark.parametrize("finding", contamination.FINDINGS)
def test_what_an_audit_found_stays_on_record(run, finding):
    edit(run / "run.json", lambda manifest: manifest["audits"]["contamination"].update({finding: "another"}))
    refused(run, rf"what the audit finds \({finding}\) is not what was noted when the run was prepared")
    assert CliRunner().invoke(audit_contamination, [str(run)]).exit_code == 1
    assert lineage.read(run)["audits"]["contamination"][finding] == "another"


def test_an_audit_made_again_of_an_unchanged_run_changes_nothing(run):
    noted = lineage.read(run)["audits"]
    for command in (audit_contamination, audit_reward):
        assert CliRunner().invoke(command, [str(run)]).exit_code == 0
    assert lineage.read(run)["audits"] == noted
    assert judge([run])[0].passed


def test_what_the_manifest_names_is_that_of_the_recipe(run):
    edit(run / "run.json", lambda manifest: manifest.update(reward="format-only-v9"))
    edit(run / "run.json", lambda manifest: manifest["base"].update(folder="models/another"))
    told = refused(run, "the manifest names the reward 'format-only-v9', the recipe 'solve-format-v1'")
    assert "the manifest names the base 'models/another', the recipe 'models/maze-tiny'" in told


def test_evaluations_of_another_adapter_are_refused(run):
    (run / "adapter" / exports.WEIGHTS).write_text("a checkpoint that was not played")
    refused(run, r"the adapter in adapter was changed or is gone: it is \w+, the run made \w+")
    other = {"folder": "adapter", "digest": exports.digest(run / "adapter")}
    edit(run / "run.json", lambda manifest: manifest.update(adapter=other))
    told = refused(
        run, r"final is of another policy: the manifest says adapter:\w+, this run's is adapter:\w+"
    )
    assert "baseline" not in told


def test_an_adapter_has_to_be_in_the_run(run, tmp_path):
    shutil.copytree(run / "adapter", tmp_path / "elsewhere")
    (run / "adapter" / "more").symlink_to(tmp_path / "elsewhere")
    refused(run, "the adapter in adapter is not in files of its own within the run")
    (run / "adapter" / "more").unlink()
    for folder in (str(tmp_path / "elsewhere"), "../elsewhere", "nowhere"):
        edit(run / "run.json", lambda manifest, folder=folder: manifest["adapter"].update(folder=folder))
        refused(run, "is not in files of its own within the run")


@pytest.mark.parametrize("entry", ["folder", "nested", "pipe", "link", "linked folder"])
def test_an_adapter_is_plain_files_in_its_folder(run, entry):
    folder = run / "adapter"
    if entry == "folder":
        (folder / "README.md").mkdir()
    elif entry == "nested":
        (folder / "README.md").mkdir()
        shutil.copy(folder / exports.WEIGHTS, folder / "README.md" / exports.WEIGHTS)
    elif entry == "pipe":
        os.mkfifo(folder / "README.md")
    elif entry == "link":
        (folder / exports.WEIGHTS).rename(run / "weights")
        (folder / exports.WEIGHTS).symlink_to(run / "weights")
    else:
        folder.rename(run / "kept")
        folder.symlink_to(run / "kept")
    refused(run, "the adapter in adapter is not in files of its own within the run, and nothing else")


@pytest.mark.parametrize("name", ["run.json", "recipe.json", f"adapter/{exports.CONFIG}"])
def test_what_one_reader_could_take_otherwise_is_refused(run, name):
    """Of a key that is there twice Python takes the last, others the first."""
    path = run / name
    path.write_text(path.read_text().replace("{", '{"r": 1, "r": 2,', 1).replace(",}", "}"))
    refused(run, "'r' is there twice")


def test_what_the_base_was_taught_stays_what_it_was(run):
    ancestry.declare(run / "ancestry", [])
    refused(run, "the base model's ancestry was changed or is gone since the run was prepared")
    edit(run / "run.json", lambda manifest: manifest.pop("ancestry"))
    refused(run, r"what the audit finds \(declared\) is not what was noted when the run was prepared")


def prints(digits):
    return ancestry.Prints(*(one * 16 for one in digits))


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A run whose base was taught two tasks, turned in all ways."""
    folder = tmp_path_factory.mktemp("taught")
    lists = [ancestry.Body("lessons", [prints("abcd"), prints("ef01")], symmetries=True)]
    return make(folder / "one", folder / "base", before=one_in(3), after=one_in(40), lists=lists)


def teach(run, *bodies):
    """Someone declares other lessons, and notes their digest in the manifest."""
    ancestry.declare(run / "ancestry", bodies)
    edit(run / "run.json", lambda m: m.update(ancestry=tree_digest(run / "ancestry")))


@pytest.mark.parametrize(
    "body",
    [
        ancestry.Body("lessons", [prints("abcd"), prints("ef02")], symmetries=True),
        ancestry.Body("lessons", [prints("abcd"), prints("ef01")]),
    ],
)
def test_as_many_other_lessons_are_not_what_was_noted(taught, tmp_path, body):
    run = shutil.copytree(taught, tmp_path / "one")
    teach(run, body)
    refused(run, r"what the audit finds \(taught\) is not what was noted")


@pytest.mark.parametrize(
    "own",
    [
        [ancestry.Body("other", [prints("abcd"), prints("ef01")], symmetries=True)],
        [ancestry.Body("lessons", [prints("abcd"), prints("ef01")])],
        [ancestry.Body("lessons", [prints("abcd"), prints("ef01")], symmetries=True, generator={"seed": 7})],
        [],
        None,
    ],
)
def test_the_base_at_hand_declares_all_that_the_run_keeps(taught, tmp_path, own):
    base = tmp_path / "base"
    base.mkdir()
    _require_same_lessons(taught, shutil.copytree(taught.parent / "base", tmp_path / "same"))
    if own is not None:
        ancestry.declare(base, own)
    with pytest.raises(DataError, match="declares other lessons"):
        _require_same_lessons(taught, base)


@pytest.mark.parametrize("odd", ["ABCDEFABCDEFABCD", "abc", "a" * 17, "\x1b[2K"])
def test_a_digest_of_another_form_is_like_no_task_and_refused(tmp_path, odd):
    ancestry.declare(
        tmp_path, [ancestry.Body("lessons", [ancestry.Prints("a" * 16, odd, "b" * 16, "c" * 16)])]
    )
    with pytest.raises(DataError, match="which is no digest of a task: they are 16 digits of 0-9 and a-f"):
        ancestry.read(tmp_path)


def test_an_audit_of_later_files_replaces_nothing_that_was_noted(taught, tmp_path):
    run = shutil.copytree(taught, tmp_path / "one")
    shutil.rmtree(run / "ancestry")
    edit(run / "run.json", lambda manifest: manifest.pop("ancestry"))
    noted = lineage.read(run)["audits"]["contamination"]["taught"]
    for _ in range(2):
        assert CliRunner().invoke(audit_contamination, [str(run)]).exit_code == 1
        assert lineage.read(run)["audits"]["contamination"]["taught"] == noted
    refused(run, "its contamination audit did not pass")


def test_a_split_without_a_noted_digest_is_refused(run):
    edit(run / "run.json", lambda manifest: manifest["data"].update(test=None))
    refused(run, "split test.jsonl was changed")


def test_a_split_edited_by_hand_is_refused(run):
    path = run / "data" / "test.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    refused(run, "split test.jsonl was changed")


@pytest.mark.parametrize(
    ("split", "source", "faults"),
    [
        (
            "train",
            "test",
            ["test repeats train: 1 exact", "the rows of train are not those that the recipe draws"],
        ),
        ("test-512", "dev", ["test-512 repeats dev: 1 exact", "the rows of test-512 are not those"]),
        ("test-512", "test-512", ["the rows of test-512 are not those that the recipe draws"]),
    ],
)
def test_a_leak_with_every_digest_renewed_is_refused(run, split, source, faults):
    """A task of another split, or one chosen instead, with data, digest file and manifest in agreement."""
    rows = list(lineage.read_split(run, split))
    spare = splits.evaluation_pool(recipe.read_resolved(run / "recipe.json").environment.make()).test_512[100]
    leaked = spare if source == split else lineage.read_split(run, source)[0]
    rows[-1] = leaked | {"split": split}
    digest = splits.write(run / "data" / f"{split}.jsonl", rows)
    edit(run / "run.json", lambda manifest: manifest["data"].update({split: digest}))
    told = refused(run, "gives no evidence")
    assert all(fault in told for fault in faults), told


def test_an_unfinished_run_is_refused(run):
    edit(run / "run.json", lambda manifest: manifest.pop("adapter"))
    refused(run, "training has not finished: there is no adapter")


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "\xff", "[" * 100_000, "{}", '{"recipe": []}', '{"base": {}}', '{"evaluations": {"a": 1}}'],
)
def test_a_damaged_manifest_is_told_by_both_audits(run, content):
    (run / "run.json").write_bytes(content.encode("latin-1"))
    for command in (audit_contamination, audit_reward):
        found = CliRunner().invoke(command, [str(run)])
        assert isinstance(found.exception, DataError)
        assert "files of run 'one' are not as a run writes them: run.json: " in found.exception.problem


def test_no_threshold_is_beyond_the_arithmetic(sound, tmp_path):
    for alpha in (1e-17, 0.0):
        with pytest.raises(ConfigError, match=r"gate.alpha = "):
            recipe.load(RECIPE, SMALL | {"gate.alpha": alpha})
    least = recipe.load(RECIPE, SMALL | {"gate.alpha": 1e-6, "gate.min_solve_rate": 0.5})
    prepare.prepare(least, tmp_path / "run", base_dir=sound.parent / "base", image="test")


@pytest.mark.parametrize(
    "damage",
    [
        lambda run: (run / "run.json").write_text('{"run": "one"'),
        lambda run: edit(run / "run.json", lambda manifest: manifest["evaluations"]["final"].pop("records")),
        lambda run: edit(run / "run.json", lambda manifest: manifest.update(audits=["passed"])),
        lambda run: edit(run / "run.json", lambda manifest: manifest.update(run="x\x1b[2K\rPassed.")),
        lambda run: edit(run / "run.json", lambda manifest: manifest.pop("created")),
        lambda run: edit(run / "run.json", lambda manifest: manifest["test_plays"][0].pop("again")),
        lambda run: (run / "run.json").write_text("[" * 100_000),
        lambda run: edit(run / "run.json", lambda manifest: manifest["test_plays"][0].update(records=None)),
        lambda run: edit(run / "run.json", lambda manifest: manifest.update(commit="\ud800")),
    ],
)
def test_a_manifest_that_no_run_wrote_is_refused(run, damage):
    damage(run)
    refused(run, "files of run 'one' are not as a run writes them")


@pytest.mark.parametrize("split", ["dev", "test-512"])
def test_a_ceiling_is_that_of_the_tasks(run, split):
    edit(run / "run.json", lambda manifest: manifest["ceilings"].update({split: 0.5}))
    refused(run, f"the ceiling of {split} is on record as 0.5, its tasks give")
