"""What report.html says of who played what, where someone edited the run folder."""

import pytest

from tests.training import gate_run
from tests.training.gate_run import edit, evaluate, one_in
from training import lineage, report, seal, splits
from training.evaluate import read_records, summarize
from training.files import Appended, file_digest
from training.report import learning
from training.report.run import read


def own(run):
    return gate_run.candidate(lineage.read(run)["adapter"])


def test_a_split_as_the_recipe_draws_it_is_said_to_be_the_published(run):
    text = report.write(run).read_text()
    assert "the published 64" in text
    assert "not those that the recipe draws" not in text


@pytest.mark.parametrize("split", ["test", "ood"])
def test_an_edited_split_is_said_to_be_one(run, split):
    """Its digest is renewed, and both plays are of its tasks."""
    rows = list(splits.read(run / "data" / f"{split}.jsonl"))
    digest = splits.write(run / "data" / f"{split}.jsonl", rows[1:])
    edit(run / "run.json", lambda manifest: manifest["data"].update({split: digest}))
    for when in ("baseline", "final"):
        label = seal.label(when, split)

        def trim(lines):
            lines[:] = [line for line in lines if line["digest"] != rows[0]["digest"]]

        gate_run.forge(run, label, trim, ["manifest", "seal"])
        path = run / "evaluations" / f"{label}.jsonl"
        summary = summarize(read_records(path)).to_json()
        edit(run / "run.json", lambda m, at=label, of=summary: m["evaluations"][at].update(of))
        path.with_suffix(".summary.json").unlink(missing_ok=True)
    text = report.write(run).read_text()
    assert f"data/{split}.jsonl was changed: its rows are not those that the recipe draws" in text
    told = [row for row in learning.sealed(read(run)) if row.name == split]
    assert [row.says for row in told] == ["changed by hand: not what the recipe draws"]
    assert ("the published 64" in text) == (split != "test")


def test_a_reason_shows_what_it_holds(run):
    evaluate(run, "test", "again1", own(run), one_in(40), again="x\u202eecnahc tsal a")
    text = report.write(run).read_text()
    assert "\u202e" not in text
    assert "x\\u202eecnahc tsal a" in text


def test_a_play_that_was_begun_is_listed(run):
    seal.check(run, own(run), "test", "again1", "we hoped for better")
    records = run / "evaluations" / "again1.jsonl"
    records.write_text("\n" * 5)
    seal.note_progress(run, "test", "again1", records, Appended(5, "", file_digest(records)))
    seal.check(run, own(run), "test", "again1", "we hoped for better", records)
    (begun,) = [play for play in learning.plays(read(run)) if not play["played"]]
    assert (begun["label"], begun["repeat"]) == ("again1", True)
    text = report.write(run).read_text()
    assert "<strong>repeat</strong>: we hoped for better; continued" in text
    assert "with 5 records, 5 had been there" in text
    assert ", no end</td>" in text


def test_a_damaged_continuation_is_named_and_the_rest_is_shown(run):
    edit(run / "run.json", lambda manifest: manifest["test_started"][0].update(continued=[7]))
    assert "No table of sealed plays: run.json could not be read" in report.write(run).read_text()


def test_a_policy_that_nobody_verified_is_no_step(run):
    evaluate(run, "dev", "dev-0002", "adapter:2", one_in(2))
    evaluate(run, "dev", "dev-0004", "unverified:http://there", lambda digest: True)
    found = read(run)
    assert "dev-0004" in found.evaluations
    assert [step for step, _ in found.dev()] == [2]
