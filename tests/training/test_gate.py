"""`skypod gate` on run folders: what it decides, writes, withdraws and plays again."""

import json
import random
import shutil
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from cdk_app.gate import gate, told
from tests.training import gate_run
from tests.training.gate_run import WRITTEN, edit, one_in, refused, reseed
from training import lineage, prepare, recipe, splits
from training.errors import ConfigError, DataError
from training.evaluate import ceiling
from training.gate import evidence, replay
from training.gate.judge import judge
from training.gate.thresholds import check_attainable


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


def test_every_run_is_held_against_every_other(run, other, tmp_path):
    """A refused run under the name of another would be decided on that one's conditions."""
    two = shutil.copytree(other, tmp_path / "two")
    third = reseed(run, tmp_path / "three", 3, after=lambda digest: False)
    edit(third / "run.json", lambda manifest: manifest.update(run="two"))
    with pytest.raises(ConfigError, match="both of a run called 'two'"):
        judge([run, two, third])


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


@pytest.mark.parametrize("seeds", [True, False])
def test_what_played_every_episode_alike_is_no_second_run(run, tmp_path, seeds):
    """An adapter scaled in both factors has other weights, and computes the same."""
    twin = reseed(run, tmp_path / "twin", 1, after=one_in(40))
    with pytest.raises(ConfigError, match="took the same actions in every episode"):
        judge([run, twin]) if seeds else judge([run], twin)
    first, second = evidence.read(run), evidence.read(twin)
    second.records["final-test-512"][0] = replace(second.records["final-test-512"][0], actions=("",))
    with pytest.raises(ConfigError, match="every episode of test and ood"):
        evidence.check_comparable(first, second, seeds=seeds)  # nobody plays test-512 again
    second.records["final-ood"][0] = replace(second.records["final-ood"][0], actions=("",))
    evidence.check_comparable(first, second, seeds=seeds)


def test_conditions_name_split_and_size(run):
    says = {condition.name: condition.says for condition in judge([run])[0].conditions}
    assert "of the 64 tasks of test solved" in says["solve rate"]
    assert "against the base on the 6 tasks of ood [" in says["out of distribution"]


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


@pytest.mark.parametrize(
    ("keep", "named"),
    [
        (lambda run: shutil.copytree(run / "data", run / "gate.json"), "gate.json"),
        (lambda run: shutil.copytree(run / "data", run / "gate.html"), "gate.html"),
        (lambda run: (run / "run.json").write_text('{"gate": {"decision": "passed"}, "run": '), "run.json"),
        (lambda run: nested(run / "run.json"), "run.json"),
        (lambda run: twice(run / "run.json"), "run.json"),
    ],
)
def test_an_earlier_decision_that_stays_is_told_loudly(run, other, tmp_path, stack_of_1000, keep, named):
    """Beside what was refused, and whichever of the runs that were judged together."""
    two = shutil.copytree(other, tmp_path / "two")
    judge([run, two])
    for name in WRITTEN if named in WRITTEN else ():
        (run / name).unlink()
    keep(run)
    (run / "recipe.json").unlink()
    with pytest.raises(DataError, match=r"holds no recipe\.json|not as a run writes them") as error:
        judge([two, run])
    assert "an earlier decision may still stand" in error.value.problem
    assert f"{run / named}" in error.value.problem
    assert "remove by hand" in error.value.remedy
    assert not [name for name in WRITTEN if (two / name).exists()]
    assert "gate" not in lineage.read(two)


@pytest.fixture
def stack_of_1000():
    """Python's own limit: other tests' libraries raise it for the whole process."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


def nested(path):
    """What can be read and not be written again."""
    deep = "[" * 985 + "]" * 985
    path.write_text(path.read_text().replace("{", f'{{"deep": {deep},', 1))


def twice(path):
    path.write_text(path.read_text().replace("{", '{"run": "one",', 1))


def test_a_wrong_option_withdraws_nothing(run):
    judge([run])

    def replay(*_):
        raise ConfigError("513 tasks cannot be played again", "use 1 to 512")

    with pytest.raises(ConfigError):
        judge([run], replay=replay)
    assert lineage.read(run)["gate"]["decision"] == "passed"
    assert (run / "gate.json").exists()


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
    read, honest = evidence.read(run), evidence.read(run)
    played = replay.check(read, 64, lambda name: FromRecords(read, name), random.Random(0))
    decide = [*read.rows["test"], *read.rows["ood"]]
    assert sorted(played) == sorted(row["digest"] for row in decide)
    with pytest.raises(DataError, match=r"adapter:\w+ plays \d+ of 6 tasks of ood otherwise than"):
        replay.check(read, 64, lambda name: FromRecords(read, name, ood="baseline"), random.Random(0))
    with pytest.raises(DataError, match=r"adapter:\w+ plays \d+ of 64 tasks of test otherwise than"):
        replay.check(read, 64, lambda name: FromRecords(read, "baseline"), random.Random(0))
    with pytest.raises(DataError, match=r"base:\w+ plays \d+ of 64 tasks of test otherwise than"):
        replay.check(read, 64, lambda name: FromRecords(read, "final"), random.Random(0))
    lucky = [replace(record, sample=1, actions=()) for record in read.records["final"]]
    read.records["final"] += lucky  # whatever stands for a task is compared, not the last of it
    for records in (read.records["final"], read.records["final"][::-1]):
        read.records["final"] = records
        with pytest.raises(DataError, match=r"adapter:\w+ plays 64 of 64 tasks of test otherwise than"):
            replay.check(read, 64, lambda name: FromRecords(honest, name), random.Random(0))
    with pytest.raises(ConfigError, match="65 tasks of test cannot be played again"):
        replay.check(read, 65, lambda name: FromRecords(read, name), random.Random(0))


def test_what_was_played_again_is_in_the_decision_and_a_difference_ends_it(run):
    def differs(*_):
        raise DataError("plays otherwise")

    with pytest.raises(DataError, match="plays otherwise"):
        judge([run], replay=differs)
    assert not (run / "gate.json").exists()
    _, written = judge([run], replay=lambda *_: ["0123"])
    assert written["replayed"] == {"one": ["0123"]}
    assert "one: 1 random tasks, base and adapter from disk" in (run / "gate.html").read_text()


def test_the_incumbent_is_played_again_too(run, tmp_path):
    """Records that make it look worse would pass whoever is to replace it."""
    served = reseed(run, tmp_path / "served", 2, after=one_in(20))
    asked = []

    def replay(read, split, names):
        asked.append((read.run, split, tuple(names)))
        if read.run == "served" and len(asked) > 2:
            raise DataError("plays otherwise")
        return ["0123"]

    _, written = judge([run], served, replay=replay)
    assert asked == [("one", "test", ("baseline", "final")), ("served", "test", ("final",))]
    assert written["replayed"] == {"one": ["0123"], "served": ["0123"]}
    with pytest.raises(DataError, match="plays otherwise"):
        judge([run], served, replay=replay)
    read = evidence.read(served)
    one = replay_final(read)
    assert one == ["final"]


def replay_final(read):
    """Which players are made when only the candidate is played."""
    made = []

    def player(name):
        made.append(name)
        return FromRecords(read, name)

    replay.check(read, 5, player, random.Random(0), split="test", names=("final",))
    return sorted(set(made))


def test_an_incumbent_that_cannot_be_played_is_said_not_to_have_been(run, tmp_path):
    served = reseed(run, tmp_path / "served", 2, after=one_in(20))

    def replay(read, split, names):
        if read.run == "served":
            raise ConfigError("there is no base model in /nowhere")
        return ["0123"]

    _, written = judge([run], served, replay=replay)
    assert written["not_replayed"] == {"served": "there is no base model in /nowhere"}
    said = "The incumbent served was not played again: there is no base model in /nowhere."
    assert said in told(written)
    assert said in (run / "gate.html").read_text()


def test_a_folder_named_by_mistake_withdraws_nothing(run, tmp_path):
    judge([run])
    (tmp_path / "typo").mkdir()
    found = CliRunner().invoke(gate, [str(run), str(tmp_path / "typo")])
    assert found.exception.exit_code == 2
    assert lineage.read(run)["gate"]["decision"] == "passed"
    assert all((run / name).exists() for name in WRITTEN)


def test_the_base_is_compared_by_its_whole_digest(run, other):
    edit(run / "run.json", lambda manifest: manifest["base"].update(digest=manifest["base"]["digest"][:16]))
    refused(run, r"the manifest names the base by '\w{16}', no SHA-256")
    first, second = evidence.read(other), evidence.read(other)
    second.manifest |= {"run": "three", "base": {"digest": first.manifest["base"]["digest"][:16] + "0" * 48}}
    second.recipe, second.weights = second.recipe.model_copy(update={"seed": 9}), "others"
    second.manifest["data"] = first.manifest["data"] | {"train": "0"}
    with pytest.raises(ConfigError, match="differ in more than their seed"):
        evidence.check_comparable(first, second, seeds=True)


def test_what_changes_no_result_may_differ_between_seeds(run, other):
    first, second = evidence.read(run), evidence.read(other)
    patient = recipe.Recovery(max_attempts=99)
    second.recipe = second.recipe.model_copy(update={"recovery": patient})
    evidence.check_comparable(first, second, seeds=True)


def test_a_base_of_undeclared_ancestry_is_said_to_be_one(run):
    found = CliRunner().invoke(gate, [str(run)])
    assert (
        "What the base of one was taught is not declared: the base model has no ancestry.json."
        in found.stdout
    )
    page = (run / "gate.html").read_text()
    assert "<strong>not declared</strong>: the base model has no ancestry.json" in page
    assert "2 mirrored on purpose" in page
    shown = json.loads((run / "gate.json").read_text())["evidence"]["one"]["ancestry"]
    assert (shown["declared"], shown["taught"]) == (False, [])
    assert [(one["split"], one["seen_in"], one["declared"]) for one in shown["alike"]] == [("ood", "test", 2)]


def test_a_key_of_a_file_is_no_line_of_ours(run):
    edit(run / "recipe.json", lambda chosen: chosen.update({"x\x1b[2K\nPassed.\n": 1}))
    told = refused(run, "is not the recipe that the run began with")
    assert r"x\x1b[2K\nPassed.\n is 1" in told
    assert "\n" not in told
