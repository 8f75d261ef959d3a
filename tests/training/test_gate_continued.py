"""Plays that were stopped and gone on with: each is shown, and one that lost records is a further look."""

import hashlib
import os
from pathlib import Path

import pytest

from tests.training import gate_run
from tests.training.gate_run import edit, one_in, refused
from tests.training.test_plays import Player, perform
from training import lineage, seal
from training.errors import DataError
from training.gate.judge import judge


class Killed(Exception):
    pass


def kill(run, label, after, policy=None):
    """The driver dies after so many turns; without a policy it is the run's own adapter that plays."""
    turns = iter(range(after))

    def before():
        if next(turns, None) is None:
            raise Killed

    policy = policy or gate_run.candidate(lineage.read(run)["adapter"])
    with pytest.raises(Killed):
        perform(run, label, policy, lambda: Player(run, "test", before))
    return run / "evaluations" / f"{label}.jsonl"


def forget(run, label):
    """Take the beginning and the end of a play out of the manifest; its file stays."""

    def take_out(manifest):
        manifest["evaluations"].pop(label, None)
        for section in ("test_plays", "test_started"):
            manifest[section] = [play for play in manifest[section] if play["label"] != label]

    edit(run / "run.json", take_out)


@pytest.fixture
def unplayed(run):
    """A run whose adapter has not seen the published mazes."""
    forget(run, "final")
    for path in (run / "evaluations").glob("final.*"):
        path.unlink()
    return run


def end(run):
    chosen = gate_run.recipe.read_resolved(run / "recipe.json")
    rows = lineage.read_split(run, "test")
    policy = gate_run.candidate(lineage.read(run)["adapter"])
    perform(run, "final", policy, lambda: gate_run._Player(chosen, rows, one_in(40)))
    return judge([run])


@pytest.mark.parametrize("changed", ["file", "a line", "an outcome"])
def test_a_play_whose_records_were_changed_is_played_anew_and_a_further_look(unplayed, changed):
    path = kill(unplayed, "final", 8)
    held = path.read_bytes().splitlines(keepends=True)
    if changed == "file":
        path.unlink()
    elif changed == "a line":
        path.write_bytes(b"".join(held[1:]))
    else:
        other = held[0].replace(b"('stop', 'stop')", b"('move', 0)", 1)
        assert other != held[0]
        path.write_bytes(b"".join([other, *held[1:]]))
    decision, written = end(unplayed)
    assert decision.looks == {"one": 2}
    (one,) = written["evidence"]["one"]["continued"]
    assert (one["label"], one["records"], one["reached"], one["lost"]) == ("final", 0, len(held), True)
    page = (unplayed / "gate.html").read_text()
    assert f"0 records were found of {len(held)} that had been there: it counts" in page
    assert any("final, begun anew" in test.what for test in decision.tests)


def test_every_deletion_counts(unplayed):
    for _ in range(2):
        kill(unplayed, "final", 8).unlink()
    assert end(unplayed)[0].looks == {"one": 3}


def test_a_play_that_lost_nothing_is_shown_and_does_not_count(unplayed):
    held = kill(unplayed, "final", 8).read_bytes().count(b"\n")
    kill(unplayed, "final", 1)
    decision, written = end(unplayed)
    assert decision.looks == {"one": 1}
    assert [one["records"] for one in written["evidence"]["one"]["continued"]] == [held, held]
    assert f"{held} records were found</li>" in (unplayed / "gate.html").read_text()


def test_no_play_of_a_candidate_begins_with_records(unplayed):
    """Whoever puts them there need not forge a digest, and what was lost can be taken out."""
    path = kill(unplayed, "final", 8)
    path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n")
    edit(unplayed / "run.json", lambda manifest: manifest["test_started"].pop())
    with pytest.raises(DataError, match="final holds 1 records of test already, and never began"):
        end(unplayed)
    assert "final" not in [play["label"] for play in lineage.read(unplayed)["test_started"]]


def test_a_play_that_was_begun_takes_no_records_that_were_not_noted(unplayed):
    """They may be those won in a play whose beginning was taken out, or of an editor."""
    path = kill(unplayed, "final", 8)
    won = path.read_bytes()
    path.unlink()
    edit(unplayed / "run.json", lambda manifest: manifest["test_started"].pop())
    kill(unplayed, "final", 1)
    path.write_bytes(won)
    assert kill(unplayed, "final", 0).read_bytes() == b""
    held = kill(unplayed, "final", 8).read_bytes()
    elsewhere = unplayed.parent / "elsewhere"
    elsewhere.write_bytes(held + won)
    path.unlink()
    path.symlink_to(elsewhere)
    assert kill(unplayed, "final", 0).read_bytes() == held
    assert elsewhere.read_bytes() == held + won


def test_records_are_not_changed_while_they_are_played(unplayed):
    """What is noted next would hold the change, and a continuation would take it."""
    path, turns = unplayed / "evaluations" / "final.jsonl", iter(range(8))

    def before():
        if next(turns, None) is None:
            path.write_bytes(path.read_bytes().replace(b"('stop', 'stop')", b"('move', 0)", 1))

    policy = gate_run.candidate(lineage.read(unplayed)["adapter"])
    with pytest.raises(DataError, match="records of final were changed while it was played"):
        perform(unplayed, "final", policy, lambda: Player(unplayed, "test", before))
    assert end(unplayed)[0].looks == {"one": 2}


def test_records_that_are_laid_beside_those_of_a_play_are_none_of_it(unplayed):
    """An editor adds the tasks that are not played yet, and the play is stopped: nothing was taken away."""
    path, turns, forged = unplayed / "evaluations" / "final.jsonl", iter(range(8)), []

    def before():
        if next(turns, None) is None:
            held, at = path.read_bytes(), unplayed / "evaluations" / "baseline.jsonl"
            forged.append(at.read_bytes().splitlines(keepends=True)[-1])
            path.write_bytes(held + forged[0])

    policy = gate_run.candidate(lineage.read(unplayed)["adapter"])
    with pytest.raises(DataError, match="records of final were changed while it was played"):
        perform(unplayed, "final", policy, lambda: Player(unplayed, "test", before))
    assert forged[0] in path.read_bytes()
    assert forged[0] not in kill(unplayed, "final", 0).read_bytes()
    assert end(unplayed)[0].looks == {"one": 1}


def test_what_is_noted_is_what_was_played_and_not_what_the_file_then_holds(unplayed, monkeypatch):
    """Whoever holds the folder's lock has all the time to exchange the records of the last turn."""
    path, note, once = unplayed / "evaluations" / "final.jsonl", seal.note_progress, [True]

    def late(*args):
        if once:
            once.clear()
            path.write_bytes(path.read_bytes().replace(b"('stop', 'stop')", b"('move', 0)", 1))
        note(*args)

    monkeypatch.setattr(seal, "note_progress", late)
    with pytest.raises(DataError, match="records of final were changed while it was played"):
        end(unplayed)
    monkeypatch.undo()
    assert kill(unplayed, "final", 0).read_bytes() == b""


@pytest.mark.parametrize(("label", "found"), [("final", 0), ("baseline", 64)])
def test_records_exchanged_between_the_seals_look_and_the_plays_end_as_no_play(
    unplayed, monkeypatch, label, found
):
    """A play that finds every episode appends none, so nobody notes what it found."""

    path, check = unplayed / "evaluations" / f"{label}.jsonl", seal.check
    policy = gate_run.candidate(lineage.read(unplayed)["adapter"])
    if label == "baseline":
        policy = "base:" + lineage.read(unplayed)["base"]["digest"][:16]
    perform(unplayed, label, policy)
    forged = path.read_bytes()
    forget(unplayed, label)
    path.unlink()

    def late(*args):
        check(*args)
        path.write_bytes(forged)

    monkeypatch.setattr(seal, "check", late)
    with pytest.raises(DataError, match=f"{label} ended with other records than were noted"):
        perform(unplayed, label, policy)
    assert label not in lineage.read(unplayed)["evaluations"]
    monkeypatch.undo()
    assert perform(unplayed, label, policy)["n"] == 64
    # A base's play takes over what it finds, and that is shown.
    shown = [one["records"] for one in seal.continued(lineage.read(unplayed)) if one["label"] == label]
    assert shown == [found]


def test_what_a_crash_left_while_records_were_cut_goes_with_the_next_continuation(unplayed, monkeypatch):
    path, replace = kill(unplayed, "final", 8), os.replace
    with path.open("ab") as file:
        file.write(b"{}\n")

    def die(source, target):
        if Path(target) == path:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as dying:
        dying.setattr(os, "replace", die)
        dying.setattr(os, "unlink", lambda path: None)
        with pytest.raises(KeyboardInterrupt):
            end(unplayed)
    (left,) = path.parent.glob(".final.jsonl.*")
    assert left.stat().st_size > 0
    decision, _ = end(unplayed)
    assert decision.looks == {"one": 1}
    assert not left.exists()


def test_what_a_crash_left_goes_also_where_the_records_are_gone(unplayed):
    path = kill(unplayed, "final", 8)
    path.rename(left := path.with_name(".final.jsonl.abcdefgh"))
    assert end(unplayed)[0].looks == {"one": 2}
    assert not left.exists()


@pytest.mark.parametrize("label", ["final", "baseline"])
def test_what_is_noted_of_a_continuation_is_what_was_looked_at(run, monkeypatch, label):
    """A second process exchanges the file once its first reader has it."""

    path = run / "evaluations" / f"{label}.jsonl"
    (policy,) = [play["candidate"] for play in lineage.read(run)["test_plays"] if play["label"] == label]
    won = path.read_bytes()
    forget(run, label)
    path.unlink()
    kill(run, label, 8, policy)
    held, read = path.read_bytes(), seal.read_whole
    forged = b"".join(won.splitlines(keepends=True)[: held.count(b"\n")])
    assert forged != held

    def exchanged(file):
        content = read(file)
        if file == path and content == held:
            path.write_bytes(forged)
        return content

    monkeypatch.setattr(seal, "read_whole", exchanged)
    with pytest.raises(DataError):
        perform(run, label, policy)
    monkeypatch.undo()
    assert label not in lineage.read(run)["evaluations"]
    noted = next(entry for entry in lineage.read(run)["test_started"] if entry["label"] == label)["noted"]
    assert noted == hashlib.sha256(held).hexdigest()


def test_a_look_that_was_given_up_in_the_middle_of_a_line_or_of_a_cut_is_no_fault(run):
    path = kill(run, "other-test", 8, "adapter:" + "9" * 16)
    held = path.read_bytes()
    whole = held.splitlines(keepends=True)
    path.write_bytes(held + whole[0].replace(b'"sample":0', b'"sample":1')[:200])
    (path.parent / ".other-test.jsonl.ab_d3fgh").write_bytes(held)
    decision, _ = judge([run])
    assert decision.looks == {"one": 2}
    (path.parent / ".final.jsonl.abcdefgh").write_bytes(held)
    with pytest.raises(DataError, match=r"\.final\.jsonl\.abcdefgh holds \d+ sealed tasks of a play"):
        judge([run])


def test_only_files_are_swept(unplayed):
    path = kill(unplayed, "final", 8)
    (path.parent / ".final.jsonl.abcdefgh").mkdir()
    assert end(unplayed)[0].looks == {"one": 1}


def test_a_play_of_the_base_goes_on_after_a_line_that_was_cut_off(run):
    """Its first records were being written when the node was lost, and none of them was noted."""
    forget(run, "baseline")
    path, policy = run / "evaluations" / "baseline.jsonl", "base:" + lineage.read(run)["base"]["digest"][:16]
    held = path.read_bytes()
    path.write_bytes(held[: len(held) // 2])
    entry = perform(run, "baseline", policy)
    assert entry["n"] == 64
    (one,) = [one for one in seal.continued(lineage.read(run)) if one["label"] == "baseline"]
    assert one["records"] == held[: len(held) // 2].count(b"\n")


def test_a_play_of_the_base_that_goes_on_takes_what_was_noted(run):
    base = "base:" + lineage.read(run)["base"]["digest"][:16]
    edit(run / "run.json", lambda manifest: manifest["test_plays"].clear())
    path = run / "evaluations" / "baseline-ood.jsonl"
    found = path.read_bytes()
    seal.check(run, base, "ood", "baseline-ood", None, path)
    assert path.read_bytes() == found
    path.write_bytes(found * 2)
    seal.check(run, base, "ood", "baseline-ood", None, path)
    assert path.read_bytes() == found


def test_a_play_of_the_base_that_was_begun_anew_takes_no_records_of_others(run):
    """What was noted of it was deleted: that is no reason to begin with what an editor lays down."""
    base = "base:" + lineage.read(run)["base"]["digest"][:16]
    edit(run / "run.json", lambda manifest: manifest["test_plays"].clear())
    path = run / "evaluations" / "baseline-ood.jsonl"
    found = path.read_bytes()
    seal.check(run, base, "ood", "baseline-ood", None, path)
    path.unlink()
    seal.check(run, base, "ood", "baseline-ood", None, path)
    path.write_bytes(found)
    seal.check(run, base, "ood", "baseline-ood", None, path)
    assert path.read_bytes() == b""


def test_records_that_arrive_while_the_seal_waits_for_the_manifest_are_none_of_a_play(unplayed, monkeypatch):
    path = kill(unplayed, "final", 8)
    won = path.read_bytes()
    path.unlink()
    edit(unplayed / "run.json", lambda manifest: manifest["test_started"].pop())
    changing = lineage.changing

    def late(run):
        path.write_bytes(won)
        return changing(run)

    monkeypatch.setattr(lineage, "changing", late)
    with pytest.raises(DataError, match="records of test already, and never began"):
        end(unplayed)


def test_records_with_which_a_play_of_the_base_began_are_shown(run):
    """They may be of the run that played the base for a sweep, or of an editor."""
    forget(run, "baseline")
    policy = "base:" + lineage.read(run)["base"]["digest"][:16]
    perform(run, "baseline", policy, lambda: None)
    decision, written = judge([run])
    assert decision.looks == {"one": 1}
    (one,) = written["evidence"]["one"]["continued"]
    assert (one["label"], one["records"], one["reached"], one["lost"]) == ("baseline", 64, 0, False)
    assert "64 records were found, 64 of them not noted before</li>" in (run / "gate.html").read_text()


@pytest.mark.parametrize("change", [{"records": -1}, {"reached": True}, {"at": "0000-99-99T99:99:99Z"}])
def test_a_continuation_as_no_run_writes_it_is_refused(run, change):
    one = {"at": "2030-01-01T00:00:00Z", "records": 1, "reached": 1} | change
    edit(run / "run.json", lambda manifest: manifest["test_started"][0].update(continued=[one]))
    refused(run, "was continued as no run writes it")


def test_what_was_noted_while_it_was_played_is_held_against_the_seal(run):
    """Records forged afterwards, with the digests of manifest and seal made anew, and this one forgotten."""
    noted = {entry["label"]: entry["noted"] for entry in lineage.read(run)["test_started"]}
    gate_run.forge(run, "final", lambda lines: lines.reverse(), note=["manifest", "seal"])

    def forget(manifest):
        for entry in manifest["test_started"]:
            entry["noted"] = noted[entry["label"]]

    edit(run / "run.json", forget)
    refused(run, "final ended with other records than were noted as it was played")
    edit(run / "run.json", lambda manifest: [entry.pop("noted") for entry in manifest["test_started"]])
    refused(run, "final ended with other records than were noted as it was played")


def test_records_that_are_a_link_to_nothing_begin_no_play(unplayed):
    path = unplayed / "evaluations" / "final.jsonl"
    path.symlink_to(unplayed / "nowhere" / "records")
    with pytest.raises(DataError, match="is a link that leads nowhere"):
        end(unplayed)
    assert "final" not in [play["label"] for play in lineage.read(unplayed)["test_started"]]


@pytest.mark.parametrize("change", [{"continued": None}, {"continued": {}}, {"again": ...}])
def test_a_beginning_that_no_run_writes_is_told_clearly(unplayed, change):
    kill(unplayed, "final", 8)

    def damage(manifest):
        entry = manifest["test_started"][-1]
        for key, value in change.items():
            entry.pop(key, None) if value is ... else entry.update({key: value})

    edit(unplayed / "run.json", damage)
    with pytest.raises(DataError, match=r"not as a run writes them: run\.json"):
        end(unplayed)
