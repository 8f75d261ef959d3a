"""Looks at a sealed split: which decides, which count, and that all are shown with their reasons."""

import pytest

from tests.training import gate_run
from tests.training.gate_run import edit, evaluate, forge, one_in, refused
from tests.training.test_gate_plays import TIME, base_of, hide
from training import lineage, seal
from training.errors import DataError, visible
from training.evaluate import read_records, summarize
from training.gate.judge import judge


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
            {"candidate": "adapter:20", "split": "test", "label": "step-20", "started": TIME, "again": None}
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


def test_a_look_of_the_base_counts_where_it_shows_something_else(run):
    """Whoever renames a look to the base and writes its settings anew has won nothing."""
    base = base_of(lineage.read(run))
    evaluate(run, "test", "same", base, one_in(3), again="another engine")
    assert judge([run])[0].looks == {"one": 1}
    evaluate(run, "test", "peek", base, one_in(30), again="another engine")
    decision, _ = judge([run])
    assert decision.looks == {"one": 2}
    assert f"{base} (peek) against base" in [test.what for test in decision.tests]


def test_an_unfinished_look_of_the_base_counts_too(run):
    base = base_of(lineage.read(run))
    evaluate(run, "test", "peek", base, one_in(30), again="another engine")
    edit(run / "run.json", lambda manifest: hide(manifest, "peek", "test_plays"))
    path = run / "evaluations" / "peek.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    assert judge([run])[0].looks == {"one": 2}


def test_a_look_that_was_played_to_its_end_is_not_taken_for_one_that_was_not(run):
    """As many of each task, too: then it was finished, whatever the manifest says."""
    own = gate_run.candidate(lineage.read(run)["adapter"])
    evaluate(run, "test", "again1", own, one_in(3, 1), again="we hoped for better")
    edit(run / "run.json", lambda manifest: hide(manifest, "again1", "test_plays"))
    refused(run, "again1.jsonl holds every task of test, and no end of the play is on record")


def test_a_play_that_was_begun_is_shown_with_its_reason(run):
    own = gate_run.candidate(lineage.read(run)["adapter"])
    evaluate(run, "test", "again1", own, one_in(3, 1), again="we hoped for better")
    edit(run / "run.json", lambda manifest: hide(manifest, "again1", "test_plays"))
    (run / "evaluations" / "again1.jsonl").unlink()
    decision, written = judge([run])
    assert decision.looks == {"one": 2}
    (begun,) = written["evidence"]["one"]["begun"]
    assert (begun["label"], begun["again"]) == ("again1", "we hoped for better")
    page = (run / "gate.html").read_text()
    assert f"{own} began test again as again1" in page
    assert "and did not finish, because: we hoped for better" in page


TYPED = [
    "wrong GPU\nsee ticket",
    "to compare\xa0: x",
    "again \U0001f469\u200d\U0001f52c",
    "a\tb",
    "x\u200fy",
    "re\xadplay",
    "\ud800a",
]


@pytest.mark.parametrize("reason", TYPED, ids=range(len(TYPED)))
def test_a_reason_that_was_accepted_is_never_refused(run, reason):
    own = gate_run.candidate(lineage.read(run)["adapter"])
    evaluate(run, "test", "again1", own, one_in(40), again=reason)
    _, written = judge([run])
    shown = next(play["again"] for play in written["evidence"]["one"]["plays"] if play["again"])
    assert shown == visible(" ".join(reason.split()))
    for section in ("test_plays", "test_started"):  # an earlier version kept it as it was typed
        edit(run / "run.json", lambda m, section=section: m[section][-1].update(again=reason))
    _, written = judge([run])
    shown = [play["again"] for play in written["evidence"]["one"]["plays"] if play["again"]]
    assert shown == [visible(reason)]


def test_further_samples_of_dev_that_are_being_played_withdraw_nothing(run):
    evaluate(run, "dev", "peek", "adapter:10", one_in(2))
    judge([run])
    path = run / "evaluations" / "peek.jsonl"
    played = path.read_text()
    path.write_text(played + played.splitlines(keepends=True)[0].replace('"sample":0', '"sample":1'))
    with pytest.raises(DataError, match="run 'one': peek is unfinished: more samples of dev") as error:
        judge([run])
    assert "go on with the same `skypod evaluate`" in error.value.remedy
    assert lineage.read(run)["gate"]["decision"] == "passed"
    assert all((run / name).exists() for name in gate_run.WRITTEN)
    path.write_text(played)
    assert judge([run])[0].passed


def test_a_base_that_was_looked_at_before_training_does_not_keep_the_run_from_deciding(run):
    """Its own play says why it repeats; the look counts where it came out otherwise."""
    base = base_of(lineage.read(run))
    own = lineage.read(run)["test_started"][0]["started"]

    def looked(manifest):
        for section, time in (("test_started", "started"), ("test_plays", "played")):
            entry = next(play for play in manifest[section] if play["label"] == "peek")
            manifest[section].remove(entry)
            manifest[section].insert(0, entry | {"again": None, time: own})
            for play in manifest[section]:
                if play["label"] == "baseline":
                    play["again"] = seal.OWN

    evaluate(run, "test", "peek", base, one_in(4), again="before")
    edit(run / "run.json", looked)
    decision, _ = judge([run])
    assert decision.passed
    assert decision.looks == {"one": 2}
    assert f"{base} played test again as baseline" in (run / "gate.html").read_text()


def multiply(run, at, times):
    """Every episode of a play several times, as samples of it, in agreement everywhere."""

    def repeat(lines):
        lines[:] = [line | {"sample": sample} for line in lines for sample in range(times)]

    forge(run, at, repeat, ["manifest", "seal"])
    summary = summarize(read_records(run / "evaluations" / f"{at}.jsonl")).to_json()
    edit(run / "run.json", lambda manifest: manifest["evaluations"][at].update(summary))


@pytest.mark.parametrize("label", ["baseline", "final-ood"])
def test_no_episode_counts_several_times(run, label):
    """Copies of one game would shrink every interval."""
    multiply(run, label, 10)
    refused(run, f"{label} is of 10 samples at temperature 0, and cannot decide")


def test_copies_of_a_greedy_game_are_no_samples_in_a_further_look_either(run):
    evaluate(run, "test", "peek", "adapter:10", one_in(30))
    multiply(run, "peek", 3)
    refused(run, "peek is on record with 3 samples at temperature 0 are one game played 3 times")


def test_a_repeat_put_first_by_its_time_alone_cannot_decide(run):
    own = gate_run.candidate(lineage.read(run)["adapter"])
    evaluate(run, "test", "lucky", own, one_in(60), again="once more")

    def swap(manifest):
        first, last = (
            next(play for play in manifest["test_started"] if play["label"] == label)
            for label in ("final", "lucky")
        )
        first["label"], last["label"] = "lucky", "final"
        first["again"], last["again"] = "once more", None
        first["started"], last["started"] = TIME, TIME.replace("2030", "2020")

    edit(run / "run.json", swap)
    refused(run, "final is a repeat, and cannot decide")


@pytest.mark.parametrize("split", seal.SEALED)
def test_a_begun_look_without_records_counts_on_every_split(run, split):
    """Only its entry says which one it looked at, and an entry is easily changed."""
    entry = {"candidate": "adapter:20", "split": split, "label": "peek", "started": TIME, "again": None}
    edit(run / "run.json", lambda manifest: manifest["test_started"].append(entry))
    decision, _ = judge([run])
    assert decision.looks == {"one": 2}
    assert {test.split for test in decision.tests if "peek" in test.what} == {"test", "test-512"}


def test_a_begun_look_with_records_counts_on_its_split(run):
    evaluate(run, "test-512", "peek", "adapter:20", one_in(3))
    edit(run / "run.json", lambda manifest: hide(manifest, "peek", "test_plays"))
    path = run / "evaluations" / "peek.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    assert judge([run])[0].looks == {"one": 1}


def test_a_begun_look_does_not_move_to_another_split_by_records_of_none(run):
    """Its split is in one place, and its file could then hold any task at all."""
    seal.check(run, "adapter:10", "test", "early-test")
    edit(run / "run.json", lambda manifest: manifest["test_started"][-1].update(split="ood"))
    at = run / "evaluations" / "early-test.jsonl"
    evaluate(run, "dev", "peek", "adapter:10", one_in(3))
    at.write_bytes((run / "evaluations" / "peek.jsonl").read_bytes().splitlines(keepends=True)[0])
    refused(run, "early-test.jsonl holds 1 tasks that are not of ood, as which it is sealed")


@pytest.mark.parametrize("split", seal.SEALED)
def test_a_begun_look_that_lost_its_records_counts_as_often_on_every_split(run, split):
    seal.check(run, "adapter:10", split, "early")
    one = {"at": TIME, "records": 0, "reached": 7}
    edit(run / "run.json", lambda manifest: manifest["test_started"][-1].update(continued=[one]))
    assert judge([run])[0].looks == {"one": 3}


def test_there_has_to_be_such_a_time(run):
    edit(run / "run.json", lambda m: m["test_started"][0].update(started="0000-99-99T99:99:99Z"))
    refused(run, "which is no time")
