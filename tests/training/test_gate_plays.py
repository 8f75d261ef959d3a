"""Plays that were changed, renamed, hidden or chosen after the fact: the gate refuses or counts them."""

import json
import re

import pytest

from tests.training import gate_run
from tests.training.gate_run import edit, evaluate, forge, one_in, refused
from tests.training.test_seal import BLANKS
from training import lineage
from training.errors import DataError, visible
from training.gate.judge import judge

TIME = "2030-01-01T00:00:00Z"


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


def test_a_play_that_only_the_seal_knows_as_another_policys_is_refused(run):
    def change(manifest):
        for play in manifest["test_plays"]:
            if play["label"] == "final":
                play["candidate"] = "adapter:0"

    edit(run / "run.json", change)
    refused(run, "final is of another policy: the seal says adapter:0")


def test_a_play_of_another_split_under_the_labels_name_is_refused(run):
    edit(run / "run.json", lambda manifest: manifest["evaluations"]["final"].update(split="dev"))
    refused(run, "final is of dev as the manifest says, not of test")


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


def test_a_label_is_no_path(run):
    evaluate(run, "test", "peek", "adapter:10", one_in(30))
    edit(run / "run.json", lambda manifest: manifest["test_plays"][-1].update(label="../evaluations/final"))
    refused(run, "'../evaluations/final' is in test_plays, which is no label")


def test_a_label_cannot_look_like_a_line_of_ours(run):
    evaluate(run, "test", "peek", "adapter:10", one_in(30))
    edit(run / "run.json", lambda manifest: manifest["test_plays"][-1].update(label="x\n\x1b[1mPassed."))
    told = refused(run, "gives no evidence")
    assert "\nPassed" not in told
    assert "\x1b" not in told
    assert r"x\n\x1b[1mPassed. was finished" in told
    assert visible("a\x1b[2K\nb", keep="\n") == r"a\x1b[2K" + "\nb"


@pytest.mark.parametrize("section", ["test_plays", "test_started"])
def test_a_repeat_keeps_its_reason(run, section):
    own = gate_run.candidate(lineage.read(run)["adapter"])
    evaluate(run, "test", "served", own, one_in(40), again="through a server")
    edit(run / "run.json", lambda manifest: manifest[section][-1].update(again="for another"))
    refused(run, "served was begun for another reason than it was finished for")
    for each in ("test_plays", "test_started"):
        edit(run / "run.json", lambda manifest, each=each: manifest[each][-1].update(again=None))
    refused(run, r"served repeats a play of test by adapter:\w+ without a reason")


def test_an_unfinished_play_of_what_is_not_sealed_hides_nothing(run):
    rows = lineage.read_split(run, "dev")
    (run / "evaluations" / "half-dev.jsonl").write_text(json.dumps(rows[0]) + '\n{"dig')
    assert judge([run])[0].passed


def rename(run, policy):
    """A look is told to be of another policy in its records, manifest and seal, with a reason."""
    forge(run, "peek", lambda lines: [line.update(policy=policy) for line in lines], ["manifest", "seal"])
    edit(run / "run.json", lambda manifest: renamed(manifest, candidate=policy))
    for section in ("test_plays", "test_started"):
        edit(run / "run.json", lambda m, section=section: m[section][-1].update(again="once more"))


@pytest.mark.parametrize("name", [base_of, lambda manifest: gate_run.candidate(manifest["adapter"])])
def test_a_look_renamed_everywhere_keeps_the_settings_of_its_policy(run, name):
    evaluate(run, "test", "peek", "adapter:10", one_in(30))
    policy = name(lineage.read(run))
    rename(run, policy)
    refused(run, rf"peek was not played by {policy}, greedily, .* settings \w+, \w+ expected")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "evaluations/hole.jsonl",
            "evaluations/hole.jsonl has 64,424,509,440 bytes, which is more than a run",
        ),
        ("ancestry/hole.txt", "ancestry/hole.txt has 64,424,509,440 bytes"),
        (
            "adapter/adapter_model.safetensors",
            "adapter_model.safetensors has 64,424,509,440 bytes, more than",
        ),
    ],
)
def test_a_file_of_any_size_is_not_read(run, name, told):
    with (run / name).open("wb") as file:
        file.truncate(60 << 30)
    refused(run, told)


@pytest.mark.parametrize("split", ["test", "dev"])
def test_an_entry_without_its_file_is_refused(run, split):
    evaluate(run, split, "peek", "adapter:10", one_in(30))
    (run / "evaluations" / "peek.jsonl").unlink()
    refused(run, "peek is on record, and its file peek.jsonl is gone")


@pytest.mark.parametrize("split", ["test", "dev"])
def test_a_further_evaluation_with_lines_that_are_none_is_told_clearly(run, split):
    evaluate(run, split, "peek", "adapter:10", one_in(30))
    forge(run, "peek", lambda lines: lines[0].pop("sample"), ["manifest", "seal"])
    refused(run, r"peek.jsonl line 1: an evaluation record has missing or unknown fields: \['sample'\]")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"n": 64}, "step-9 is on record with n 64, its episodes give 4"),
        ({"solved": 4}, "step-9 is on record with solved 4, its episodes give 2"),
        ({"solve_rate": 1.0}, "step-9 is on record with solve_rate 1.0, its episodes give 0.5"),
        ({"pass_at_k": {"1": 1.0}}, "step-9 is on record with pass_at_k"),
        ({"settings": "0" * 16}, "step-9 is on record with settings 0000"),
        ({"records_digest": "0"}, "step-9 is on record with records_digest 0"),
        ({"records": "0" * 64}, r"step-9.jsonl was changed: it is \w+, the manifest noted 0000"),
        ({"policy": "adapter:10"}, "step-9 was not played by adapter:10, greedily"),
        ({"temperature": 1.0, "seed": 0}, "step-9 was not played by adapter:9, at temperature 1,"),
        ({"temperature": 7.0}, "step-9 is on record with temperature = 7.0, seed = 0"),
        ({"samples": 2}, "step-9 is on record with 2 samples at temperature 0 are one game played 2 times"),
        ({"samples": True}, "step-9 is on record with True samples, which is no number of them"),
        ({"samples": 0}, "step-9 is on record with samples = 0"),
        ({"samples": 2, "temperature": 1.0}, "step-9 was not played by adapter:9, at temperature 1,"),
        ({"split": "train"}, "step-9 holds 4 episodes, of 0 of the 12 tasks of train"),
        ({"samples": 10**30}, "step-9 is on record with 10{30} samples at temperature 0"),
        ({"split": "test"}, "step-9 played test past its seal"),
        ({"split": "Passed."}, "step-9 is of 'Passed.', which is no split of a run and no file's"),
        ({"played": "once"}, "step-9 is in evaluations as played at 'once', which is no time"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_entry_says_what_its_file_says(run, change, told):
    """Of a split that is not sealed, too: what selects a checkpoint is evidence as well."""
    evaluate(run, "dev", "step-9", "adapter:9", one_in(2))
    edit(run / "run.json", lambda manifest: manifest["evaluations"]["step-9"].update(change))
    refused(run, told)


def test_what_decides_is_not_sampled(run):
    change = {"temperature": 1.0, "seed": 0}
    edit(run / "run.json", lambda manifest: manifest["evaluations"]["final"].update(change))
    refused(run, "final is of 1 samples at temperature 1, and cannot decide; greedy play of each")


def test_an_evaluation_that_is_sound_is_taken(run):
    evaluate(run, "dev", "step-9", "adapter:9", one_in(2))
    assert judge([run])[0].passed


def test_an_evaluation_is_no_path(run):
    edit(run / "run.json", lambda m: m["evaluations"].update({"../final": m["evaluations"]["final"]}))
    refused(run, r"'\.\./final' is in evaluations, which is no label")


@pytest.mark.parametrize("blank", BLANKS)
def test_a_repeat_needs_a_reason_that_can_be_read(run, blank):
    own = gate_run.candidate(lineage.read(run)["adapter"])
    evaluate(run, "test", "served", own, one_in(40), again="through a server")
    for section in ("test_plays", "test_started"):
        edit(run / "run.json", lambda m, section=section: m[section][-1].update(again=blank))
    refused(run, "served is in test_started for a reason that says nothing")


def test_a_record_that_names_something_twice_hides_nothing(run):
    """One reader sees a task of dev, another the task of the test that was played."""
    evaluate(run, "test", "peek", "adapter:10", one_in(30))
    edit(run / "run.json", lambda manifest: hide(manifest, "peek", "test_plays", "test_started"))
    path = run / "evaluations" / "peek.jsonl"
    written = "".join(f"\\u{ord(one):04x}" for one in "digest")
    path.write_text(path.read_text().replace('"digest":', f'"{written}":"0","{written}":'))
    told = refused(run, "evaluations/peek.jsonl holds 64 records that name something twice")
    assert "sealed tasks" in told


def test_a_turned_task_of_a_sealed_split_is_that_task(run):
    evaluate(run, "test", "peek", "adapter:10", one_in(30))
    edit(run / "run.json", lambda manifest: hide(manifest, "peek", "test_plays", "test_started"))
    path = run / "evaluations" / "peek.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | {"digest": "0" * 16}) + "\n" for line in lines))
    refused(run, r"evaluations/peek.jsonl holds \d+ sealed tasks of a play that is not on record")


@pytest.mark.parametrize(("section", "key"), [("test_plays", "played"), ("test_started", "started")])
def test_a_play_has_a_time(run, section, key):
    edit(run / "run.json", lambda manifest: manifest[section][0].update({key: "first of all"}))
    refused(run, f"baseline is in {section} as {key} at 'first of all', which is no time")


def test_no_play_ends_before_it_began(run):
    edit(run / "run.json", lambda manifest: manifest["test_started"][0].update(started=TIME))
    refused(run, f"baseline was finished at .*, before it began at {TIME}")


def test_a_summary_says_what_its_episodes_say(run):
    summary = run / "evaluations" / "final.summary.json"
    entry = lineage.read(run)["evaluations"]["final"]
    summary.write_text(json.dumps({key: entry[key] for key in entry.keys() - {"split", "records", "played"}}))
    assert judge([run])[0].passed
    edit(summary, lambda stated: stated.update(solve_rate=1.0))
    with pytest.raises(DataError, match=r"final\.summary\.json is not what the episodes of final give"):
        judge([run])
