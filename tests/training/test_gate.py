"""`skypod gate` on run folders: what it writes, and every way of faking a pass that it refuses."""

import json
import os
import random
import re
import shutil

import pytest
from click.testing import CliRunner

from cdk_app.audit import audit_contamination
from cdk_app.gate import gate
from tests.training import gate_run
from tests.training.gate_run import edit, evaluate, forge, make, one_in, reseed
from training import exports, lineage, prepare, recipe, splits
from training.audits import ancestry
from training.errors import ConfigError, DataError, visible
from training.evaluate import ceiling
from training.files import tree_digest
from training.gate import evidence, replay
from training.gate.judge import judge
from training.gate.thresholds import check_attainable

WRITTEN = ("gate.json", "gate.html")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A run that passes; tests copy it before they change anything."""
    folder = tmp_path_factory.mktemp("gate")
    return make(folder / "one", folder / "base", before=one_in(3), after=one_in(40))


@pytest.fixture(scope="module")
def other(sound):
    """A second seed of it that passes too; not to be changed."""
    return reseed(sound, sound.parent / "two", 1, after=one_in(25))


@pytest.fixture
def run(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "one")


def refused(run, match) -> str:
    """The gate refuses and writes nothing; what it says."""
    before = (run / "run.json").read_text()
    with pytest.raises((DataError, ConfigError), match=match) as error:
        judge([run])
    assert (run / "run.json").read_text() == before
    assert not [name for name in WRITTEN if (run / name).exists()]
    return error.value.problem


def test_a_sound_run_is_decided_and_the_decision_kept(run):
    found = CliRunner().invoke(gate, [str(run), "--json"])
    assert found.exit_code == 0, found.output
    decision = json.loads(found.stdout)
    assert decision["decision"] == "passed"
    assert decision == json.loads((run / "gate.json").read_text()) == lineage.read(run)["gate"]
    assert decision["thresholds"] == lineage.read(run)["recipe"]["gate"]
    shown = decision["evidence"]["one"]
    assert shown["audits"] == {"contamination": True, "reward": True}
    assert shown["evaluations"]["final"]["records"] == lineage.read(run)["evaluations"]["final"]["records"]
    page = (run / "gate.html").read_text()
    assert "http" not in page.replace("http-equiv", "")
    assert all(condition["says"].split(":")[0] in page for condition in decision["conditions"])


def test_a_decision_does_not_outlive_its_evidence(run):
    judge([run])
    records = run / "evaluations" / "final-test-512.jsonl"
    records.write_bytes(records.read_bytes()[:-1])
    with pytest.raises(DataError):
        judge([run])
    assert "gate" not in lineage.read(run)
    assert not [name for name in WRITTEN if (run / name).exists()]


def test_what_was_lost_is_listed_and_pictured(run, tmp_path):
    weak = reseed(run, tmp_path / "weak", 1, after=one_in(3, phase=1))
    found = CliRunner().invoke(gate, [str(weak)])
    assert found.exit_code == 1
    assert "✗ tasks of the base that were lost" in found.stdout
    assert "Refused" in found.stdout
    lost = json.loads((weak / "gate.json").read_text())["regressions"]
    rows = {row["digest"] for row in lineage.read_split(weak, "test")}
    fails = {digest for digest in rows if not one_in(3, phase=1)(digest) and one_in(3)(digest)}
    assert {one["digest"] for one in lost if one["split"] == "test"} == fails
    page = (weak / "gate.html").read_text()
    assert page.count('<div class="maze lost"') == len(lost)
    assert page.count('class="frame"') > 0


def test_every_doctored_evaluation_is_told_at_once(run):
    forge(run, "baseline", lambda lines: lines.reverse(), note=["seal"])
    forge(run, "final", lambda lines: lines.reverse(), note=["manifest"])
    forge(run, "baseline-ood", lambda lines: lines.pop(), note=["manifest", "seal"])
    forge(
        run, "final-ood", lambda lines: lines[0].update(solved=not lines[0]["solved"]), ["manifest", "seal"]
    )
    forge(run, "final-test-512", lambda lines: lines[0].update(settings="0" * 16), ["manifest", "seal"])

    def change(manifest):
        del manifest["evaluations"]["baseline-test-512"]
        manifest["evaluations"]["peek"] = {**manifest["evaluations"]["final"], "split": "test-512"}
        manifest["audits"]["contamination"]["passed"] = False
        del manifest["audits"]["reward"]

    edit(run / "run.json", change)
    told = refused(run, "gives no evidence to decide on")
    for part in (
        r"baseline.jsonl was changed: it is \w+, the manifest noted",
        r"final.jsonl was changed: it is \w+, the seal noted",
        "baseline-ood holds 5 episodes, of 5 of the 6 tasks of ood",
        r"final-ood.jsonl line 1: the actions on task \w+ do not lead to the solved stated",
        r"final-test-512 was not played by adapter:\w+, greedily, by the recipe's rules",
        "baseline-test-512 is not finished",
        "peek played test-512 past its seal",
        "its contamination audit did not pass",
        "its reward audit is missing",
    ):
        assert re.search(part, told), part


def test_evaluations_of_another_adapter_are_refused(run):
    (run / "adapter" / exports.WEIGHTS).write_text("a checkpoint that was not played")
    refused(run, r"the adapter in adapter was changed or is gone: it is \w+, the run made \w+")
    other = {"folder": "adapter", "digest": exports.digest(run / "adapter")}
    edit(run / "run.json", lambda manifest: manifest.update(adapter=other))
    told = refused(
        run, r"final is of another policy: the manifest says adapter:\w+, this run's is adapter:\w+"
    )
    assert "baseline" not in told


@pytest.mark.parametrize(
    "change",
    [
        {"max_turns": 40},
        {"reward": "solve-v1"},
        {"environment": "maze-visgym", "options": {}},
        {"options": {"squares_per_move": 2, "cell_px": 20, "wall_px": 2}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_rules_under_the_settings_digest_are_refused(run, change, monkeypatch):
    """Replayed by its own words a record is consistent; it has to be of the recipe's rules as well."""
    monkeypatch.setattr("training.evaluate._not_replayed", lambda record: [])
    forge(run, "final", lambda lines: [line.update(change) for line in lines], ["manifest", "seal"])
    refused(run, "final was not played by .* by the recipe's rules .* 64 episodes")


def test_tasks_that_were_shown_otherwise_are_refused(run):
    forge(run, "final", lambda lines: lines[0]["task"].update(palette="dusk"), ["manifest", "seal"])
    refused(run, "final shows 1 tasks otherwise than test does")


def hide(manifest, label, *sections):
    """Takes the traces of a play out of the manifest."""
    manifest["evaluations"].pop(label)
    for section in sections:
        manifest[section] = [play for play in manifest[section] if play["label"] != label]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda manifest: hide(manifest, "peek", "test_plays", "test_started"),
            "evaluations/peek.jsonl holds 64 sealed tasks of a play that is not on record",
        ),
        (
            lambda manifest: manifest["test_plays"].insert(
                0, manifest["test_plays"][-1] | {"label": "final"}
            ),
            "final is 2 times in test_plays",
        ),
        (
            lambda manifest: hide(manifest, "peek", "test_started"),
            "peek was finished by adapter:10 on test, but never begun",
        ),
        (
            lambda manifest: manifest["test_plays"][-1].update(candidate="base:0"),
            "peek was played by adapter:10, the seal says base:0",
        ),
        (
            lambda manifest: (
                hide(manifest, "peek", "test_plays", "test_started"),
                manifest["evaluations"].update(peek=manifest["evaluations"]["final"] | {"split": "dev"}),
            ),
            "evaluations/peek.jsonl holds 64 sealed tasks of a play that is not on record",
        ),
        (
            lambda manifest: renamed(manifest, candidate=base_of(manifest)),
            r"evaluations/peek.jsonl was played by adapter:10, the seal says base:\w+",
        ),
        (
            lambda manifest: renamed(manifest, split="ood"),
            "evaluations/peek.jsonl holds 64 tasks that are not of ood, as which it is sealed",
        ),
        (
            lambda manifest: renamed(manifest, split="dev"),
            "peek is in test_plays as a play of dev, which is not sealed",
        ),
        (
            lambda manifest: manifest["evaluations"].pop("peek"),
            "peek was finished on test, but its evaluation is not on record",
        ),
    ],
)
def test_another_candidates_look_cannot_be_hidden_in_part(run, change, told):
    evaluate(run, "test", "peek", "adapter:10", one_in(30))
    edit(run / "run.json", change)
    refused(run, told)


def base_of(manifest) -> str:
    return "base:" + manifest["base"]["digest"][:16]


def renamed(manifest, *, candidate: str | None = None, split: str | None = None):
    """Another policy or split for a look, in all three places."""
    for section in ("test_plays", "test_started"):
        for play in manifest[section]:
            if play["label"] == "peek":
                play.update({"candidate": candidate or play["candidate"], "split": split or play["split"]})
    manifest["evaluations"]["peek"].update(
        {
            "policy": candidate or manifest["evaluations"]["peek"]["policy"],
            "split": split or manifest["evaluations"]["peek"]["split"],
        }
    )


def test_an_unfinished_look_cannot_be_the_bases(run):
    evaluate(run, "test", "peek", "adapter:10", one_in(30))

    def change(manifest):
        hide(manifest, "peek", "test_plays")
        manifest["test_started"][-1]["candidate"] = base_of(manifest)
        manifest["test_started"][-1]["again"] = "once more"

    edit(run / "run.json", change)
    refused(run, r"evaluations/peek.jsonl was played by adapter:10, the seal says base:\w+")


@pytest.mark.parametrize("name", ["kept.bak", "old/peek.jsonl"])
def test_a_look_is_found_under_any_name(run, name):
    evaluate(run, "test", "peek", "adapter:10", one_in(30))
    edit(run / "run.json", lambda manifest: hide(manifest, "peek", "test_plays", "test_started"))
    path = run / "evaluations" / name
    path.parent.mkdir(exist_ok=True)
    (run / "evaluations" / "peek.jsonl").rename(path)
    refused(run, f"evaluations/{name} holds 64 sealed tasks of a play that is not on record")


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda lines: "".join(line.replace("{", "{\r", 1) + "\n" for line in lines),
        lambda lines: json.dumps([json.loads(line) for line in lines], indent=2),
    ],
)
def test_a_look_is_found_in_any_form(run, rewrite):
    evaluate(run, "test", "peek", "adapter:10", one_in(30))
    path = run / "evaluations" / "peek.jsonl"
    path.write_text(rewrite(path.read_text().splitlines()))
    edit(run / "run.json", lambda manifest: hide(manifest, "peek", "test_plays", "test_started"))
    refused(run, "evaluations/peek.jsonl holds 64 sealed tasks of a play that is not on record")


def test_a_lucky_repeat_cannot_become_the_play_that_decides(run):
    own = gate_run.candidate(lineage.read(run)["adapter"])
    evaluate(run, "test", "lucky", own, one_in(60), again="once more")

    def swap(manifest):
        names = {"final": "lucky", "lucky": "final"}
        for section in ("test_plays", "test_started"):
            for play in manifest[section]:
                play["label"] = names.get(play["label"], play["label"])
        plays = manifest["evaluations"]
        plays["final"], plays["lucky"] = plays["lucky"], plays["final"]

    edit(run / "run.json", swap)
    folder = run / "evaluations"
    for suffix in (".jsonl", ".summary.json"):
        if (folder / f"final{suffix}").exists():
            (folder / f"final{suffix}").rename(folder / f"kept{suffix}")
            if (folder / f"lucky{suffix}").exists():
                (folder / f"lucky{suffix}").rename(folder / f"final{suffix}")
            (folder / f"kept{suffix}").rename(folder / f"lucky{suffix}")
    refused(run, "final is a repeat, and cannot decide: only a first play of a split can")


def test_a_label_is_no_path(run):
    evaluate(run, "test", "peek", "adapter:10", one_in(30))
    edit(run / "run.json", lambda manifest: manifest["test_plays"][-1].update(label="../evaluations/final"))
    refused(run, "'../evaluations/final' is in test_plays, which is no label")


def test_every_run_is_held_against_every_other(run, other, tmp_path):
    """A refused run under the name of another would be decided on that one's conditions."""
    two = shutil.copytree(other, tmp_path / "two")
    third = reseed(run, tmp_path / "three", 3, after=lambda digest: False)
    edit(third / "run.json", lambda manifest: manifest.update(run="two"))
    with pytest.raises(ConfigError, match="both of a run called 'two'"):
        judge([run, two, third])


@pytest.mark.parametrize("section", ["test_plays", "test_started"])
def test_a_repeat_keeps_its_reason(run, section):
    own = gate_run.candidate(lineage.read(run)["adapter"])
    evaluate(run, "test", "served", own, one_in(40), again="through a server")
    edit(run / "run.json", lambda manifest: manifest[section][-1].update(again="for another"))
    refused(run, "served was begun for another reason than it was finished for")
    for each in ("test_plays", "test_started"):
        edit(run / "run.json", lambda manifest, each=each: manifest[each][-1].update(again=None))
    refused(run, r"served repeats a play of test by adapter:\w+ without a reason")


def test_what_is_no_file_among_the_evaluations_is_refused(run):
    os.mkfifo(run / "evaluations" / "waiting.jsonl")
    (run / "evaluations" / "nowhere.jsonl").symlink_to("nothing")
    told = refused(run, "evaluations/waiting.jsonl is no file of its own")
    assert "evaluations/nowhere.jsonl is no file of its own" in told


def test_a_reward_audit_is_made_again_not_believed(run):
    edit(run / "run.json", lambda manifest: manifest["audits"].update(reward={"passed": True}))
    refused(run, "its audit names the reward None, the recipe solve-format-v1")
    edit(run / "run.json", lambda manifest: manifest.update(reward="format-only-v9"))
    refused(run, "the manifest names the reward 'format-only-v9', the recipe solve-format-v1")


def test_one_adapter_is_not_two_seeds(run, other):
    first, second = evidence.read(run), evidence.read(other)
    second.weights = first.weights
    with pytest.raises(ConfigError, match="hold the same adapter"):
        evidence.check_comparable(first, second, seeds=True)
    second.weights = "others"
    second.manifest["data"]["train"] = first.manifest["data"]["train"]
    with pytest.raises(ConfigError, match="were trained on the same rows"):
        evidence.check_comparable(first, second, seeds=True)
    evidence.check_comparable(first, second, seeds=False)


def test_a_label_cannot_look_like_a_line_of_ours(run):
    evaluate(run, "test", "peek", "adapter:10", one_in(30))
    edit(run / "run.json", lambda manifest: manifest["test_plays"][-1].update(label="x\n\x1b[1mPassed."))
    told = refused(run, "gives no evidence")
    assert "\nPassed" not in told
    assert "\x1b" not in told
    assert r"x\n\x1b[1mPassed. was finished" in told
    assert visible("a\x1b[2K\nb", keep="\n") == r"a\x1b[2K" + "\nb"


def test_no_decision_outlives_evidence_that_cannot_even_be_read(run, other, tmp_path):
    """Whatever is damaged, and whichever of the runs that were judged together."""
    two = shutil.copytree(other, tmp_path / "two")
    damages = [
        lambda: (run / "run.json").write_text("[]"),
        lambda: edit(run / "run.json", lambda manifest: manifest.update(commit=7)),
        lambda: edit(run / "run.json", lambda manifest: manifest.update(commit="\ud800")),
        lambda: edit(run / "run.json", lambda manifest: manifest["adapter"].update(folder="x" * 9000)),
    ]
    sound = (run / "run.json").read_text()
    for damage in damages:
        (run / "run.json").write_text(sound)
        judge([run, two])
        damage()
        with pytest.raises(DataError):
            judge([run, two])
        assert not [name for folder in (run, two) for name in WRITTEN if (folder / name).exists()]
        assert "gate" not in lineage.read(two)


def test_a_decision_that_cannot_be_written_leaves_none(run):
    judge([run])
    (run / "gate.html").unlink()
    (run / "gate.html").mkdir()
    with pytest.raises(DataError, match="cannot be written") as error:
        judge([run])
    assert "move away" in error.value.remedy
    assert "gate" not in lineage.read(run)
    assert not (run / "gate.json").exists()


def test_a_wrong_option_withdraws_nothing(run):
    judge([run])

    def replay(_):
        raise ConfigError("513 tasks cannot be played again", "use 1 to 512")

    with pytest.raises(ConfigError):
        judge([run], replay=replay)
    assert lineage.read(run)["gate"]["decision"] == "passed"
    assert (run / "gate.json").exists()


def test_an_unfinished_play_of_what_is_not_sealed_hides_nothing(run):
    rows = lineage.read_split(run, "dev")
    (run / "evaluations" / "half-dev.jsonl").write_text(json.dumps(rows[0]) + '\n{"dig')
    assert judge([run])[0].passed


def test_an_adapter_has_to_be_in_the_run(run, tmp_path):
    shutil.copytree(run / "adapter", tmp_path / "elsewhere")
    (run / "adapter" / "more").symlink_to(tmp_path / "elsewhere")
    refused(run, "the adapter in adapter is not in files of its own within the run")
    (run / "adapter" / "more").unlink()
    for folder in (str(tmp_path / "elsewhere"), "../elsewhere", "nowhere"):
        edit(run / "run.json", lambda manifest, folder=folder: manifest["adapter"].update(folder=folder))
        refused(run, "is not in files of its own within the run")


def test_what_the_base_was_taught_stays_what_it_was(run):
    ancestry.declare(run / "ancestry", [])
    refused(run, "the base model's ancestry was changed or is gone since the run was prepared")
    edit(run / "run.json", lambda manifest: manifest.pop("ancestry"))
    refused(run, r"what the base was taught \(declared\) is not what was noted when the run was prepared")


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A run whose base was taught two tasks, turned in all ways."""
    folder = tmp_path_factory.mktemp("taught")
    lists = [ancestry.Body("lessons", [ancestry.Prints(*"abcd"), ancestry.Prints(*"efgh")], symmetries=True)]
    return make(folder / "one", folder / "base", before=one_in(3), after=one_in(40), lists=lists)


def teach(run, *bodies):
    """Someone declares other lessons, and notes their digest in the manifest."""
    ancestry.declare(run / "ancestry", bodies)
    edit(run / "run.json", lambda m: m.update(ancestry=tree_digest(run / "ancestry")))


@pytest.mark.parametrize(
    "body",
    [
        ancestry.Body("lessons", [ancestry.Prints(*"abcd"), ancestry.Prints(*"efgx")], symmetries=True),
        ancestry.Body("lessons", [ancestry.Prints(*"abcd"), ancestry.Prints(*"efgh")]),
    ],
)
def test_as_many_other_lessons_are_not_what_was_noted(taught, tmp_path, body):
    run = shutil.copytree(taught, tmp_path / "one")
    teach(run, body)
    refused(run, r"what the base was taught \(taught\) is not what was noted")


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


def test_a_play_that_only_the_seal_knows_as_another_policys_is_refused(run):
    def change(manifest):
        for play in manifest["test_plays"]:
            if play["label"] == "final":
                play["candidate"] = "adapter:0"

    edit(run / "run.json", change)
    refused(run, "final is of another policy: the seal says adapter:0")


def test_a_play_of_another_split_under_the_labels_name_is_refused(run):
    edit(run / "run.json", lambda manifest: manifest["evaluations"]["final"].update(split="dev"))
    refused(run, "final is of dev, sealed as test, not of test")


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


def test_thresholds_are_those_that_the_run_began_with(run):
    edit(run / "recipe.json", lambda chosen: chosen["gate"].update(min_solve_rate=0.1))
    told = refused(run, "is not the recipe that the run began with")
    assert "'min_solve_rate': 0.1" in told
    edit(run / "run.json", lambda manifest: manifest["recipe"].pop("gate"))
    refused(run, "began without thresholds")


def test_a_threshold_above_the_ceiling_is_refused(run):
    for path, of in ((run / "recipe.json", lambda it: it), (run / "run.json", lambda it: it["recipe"])):
        edit(path, lambda it, of=of: of(it)["gate"].update(min_solve_rate=0.97))
    refused(run, r"min_solve_rate = 0.97 cannot be met on test: 64 of 64 .* \(ceiling 100.0%\)")


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        ({"gate.min_solve_rate": 0.97}, "min_solve_rate = 0.97 cannot be met"),
        ({"gate.min_gain": 0.97}, "min_gain = 0.97 cannot be met"),
        ({"environment.max_turns": 8}, r"min_solve_rate = 0.8 .* 50 of 64 .* \(ceiling 78.1%\)"),
    ],
)
def test_a_gate_that_nothing_can_pass_is_refused_when_the_run_is_prepared(sound, tmp_path, gate, told):
    chosen = recipe.load(gate_run.RECIPE, gate_run.SMALL | gate)
    with pytest.raises(ConfigError, match=told):
        prepare.prepare(chosen, tmp_path / "runs" / "new", base_dir=sound.parent / "base", image="test")
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("path", sorted(gate_run.RECIPE.parent.glob("*.toml")), ids=lambda path: path.stem)
def test_the_gate_of_every_recipe_can_be_met(path):
    chosen = recipe.load(path)
    environment, pool = chosen.environment.make(), splits.evaluation_pool(chosen.environment.make())
    rows = pool.test if chosen.gate.split == "test" else pool.test_512[: chosen.data.test_512_mazes]
    tasks = [splits.row_task(row) for row in rows]
    check_attainable(chosen.gate, ceiling(environment, tasks, chosen.environment.max_turns), len(tasks))


def test_an_unfinished_run_is_refused(run):
    edit(run / "run.json", lambda manifest: manifest.pop("adapter"))
    refused(run, "training has not finished: there is no adapter")


def test_looks_and_repeats_are_counted_and_shown(run):
    evaluate(run, "test", "step-10", "adapter:10", one_in(30))
    evaluate(
        run,
        "test",
        "served",
        gate_run.candidate(lineage.read(run)["adapter"]),
        one_in(40),
        again="the server repeats <it>",
    )
    edit(
        run / "run.json",
        lambda manifest: manifest["test_started"].append(
            {"candidate": "adapter:20", "split": "test", "label": "step-20", "started": "then", "again": None}
        ),
    )
    decision, written = judge([run])
    assert decision.looks == {"one": 3}
    whats = [test.what for test in decision.tests if test.split == "test"]
    assert whats == [
        "candidate against base",
        "adapter:10 (step-10) against base",
        "adapter:20 (step-20) against base",
    ]
    assert [play["label"] for play in written["evidence"]["one"]["plays"] if play["again"]] == ["served"]
    assert "because: the server repeats &lt;it&gt;" in (run / "gate.html").read_text()


def test_format_without_solving_is_no_pass(run, tmp_path):
    idle = reseed(run, tmp_path / "idle", 1, after=lambda digest: False)
    decision, _ = judge([idle])
    assert not decision.passed
    assert {condition.name for condition in decision.conditions if condition.passed} == {"format"}


def test_seeds_and_incumbent_are_judged_together(run, other, tmp_path):
    other = shutil.copytree(other, tmp_path / "two")
    served = reseed(run, tmp_path / "served", 2, after=one_in(20))
    found = CliRunner().invoke(gate, [str(run), str(other), "--incumbent", str(served)])
    assert "✓ all runs: gain:" in found.stdout
    kept = [json.loads((folder / "gate.json").read_text()) for folder in (run, other)]
    assert kept[0] == kept[1]
    adapter = gate_run.candidate(lineage.read(served)["adapter"])
    assert kept[0]["incumbent"] == {"run": "served", "candidate": adapter}
    assert kept[0]["seeds"]["runs"] == 2
    assert not (served / "gate.json").exists()
    assert {one["against"] for one in kept[0]["comparisons"]} == {"base", "incumbent"}


def test_runs_that_cannot_be_judged_together_are_refused(run, other, tmp_path):
    with pytest.raises(ConfigError, match="named twice"):
        judge([run, run])
    copy = shutil.copytree(run, tmp_path / "copy")
    with pytest.raises(ConfigError, match="both of a run called 'one'"):
        judge([run, copy])
    with pytest.raises(ConfigError, match="both of a run called 'one'"):
        judge([run], copy)
    edit(copy / "run.json", lambda manifest: manifest.update(run="copy"))
    with pytest.raises(ConfigError, match="have the same seed 0"):
        judge([run, copy])
    with pytest.raises(ConfigError, match="hold the same adapter"):
        judge([run], copy)
    first, second = evidence.read(run), evidence.read(other)
    evidence.check_comparable(first, second, seeds=True)
    second.recipe = second.recipe.model_copy(
        update={"gate": second.recipe.gate.model_copy(update={"alpha": 0.1})}
    )
    with pytest.raises(ConfigError, match="differ in more than their seed"):
        evidence.check_comparable(first, second, seeds=True)
    evidence.check_comparable(first, second, seeds=False)
    second.manifest["data"]["ood"] = "0" * 64
    with pytest.raises(ConfigError, match=r"not played on the same tasks and rules \(splits ood differ\)"):
        evidence.check_comparable(first, second, seeds=False)
    second.manifest["data"]["ood"] = first.manifest["data"]["ood"]
    rules = second.recipe.environment.model_copy(update={"max_turns": 12})
    second.recipe = second.recipe.model_copy(update={"environment": rules})
    with pytest.raises(ConfigError, match="not played on the same tasks and rules"):
        evidence.check_comparable(first, second, seeds=False)


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
        lambda run: edit(run / "run.json", lambda m: m["test_plays"][0].update(played="\ud800")),
    ],
)
def test_a_manifest_that_no_run_wrote_is_refused(run, damage):
    damage(run)
    refused(run, "files of run 'one' are not as a run writes them")


def test_a_folder_that_is_no_run_is_wrong_input(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        found = CliRunner().invoke(gate, [str(folder)])
        assert found.exit_code == 2 or found.exception.exit_code == 2


class FromRecords:
    """Plays as the records of one label say."""

    def __init__(self, read, label, ood=None):
        records = [*read.records[label], *read.records[f"{ood or label}-ood"]]
        self.actions = {record.digest: record.actions for record in records}

    def act(self, conversations):
        return [self.actions[one.key.split("/")[0]][len(one.turns)] for one in conversations]


def test_tasks_played_again_show_whose_records_they_are(run):
    read = evidence.read(run)
    played = replay.check(read, 64, lambda name: FromRecords(read, name), random.Random(0))
    decide = [*read.rows["test"], *read.rows["ood"]]
    assert sorted(played) == sorted(row["digest"] for row in decide)
    with pytest.raises(DataError, match=r"adapter:\w+ plays \d+ of 6 tasks of ood otherwise than"):
        replay.check(read, 64, lambda name: FromRecords(read, name, ood="baseline"), random.Random(0))
    with pytest.raises(DataError, match=r"adapter:\w+ plays \d+ of 64 tasks of test otherwise than"):
        replay.check(read, 64, lambda name: FromRecords(read, "baseline"), random.Random(0))
    with pytest.raises(DataError, match=r"base:\w+ plays \d+ of 64 tasks of test otherwise than"):
        replay.check(read, 64, lambda name: FromRecords(read, "final"), random.Random(0))
    with pytest.raises(ConfigError, match="65 tasks of test cannot be played again"):
        replay.check(read, 65, lambda name: FromRecords(read, name), random.Random(0))


def test_what_was_played_again_is_in_the_decision_and_a_difference_ends_it(run):
    def differs(read):
        raise DataError("plays otherwise")

    with pytest.raises(DataError, match="plays otherwise"):
        judge([run], replay=differs)
    assert not (run / "gate.json").exists()
    _, written = judge([run], replay=lambda read: ["0123"])
    assert written["replayed"] == {"one": ["0123"]}
