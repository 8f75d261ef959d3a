import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.training import sample_run
from training import report
from training.errors import DataError
from training.evaluate import paired, read_records, summarize
from training.files import file_digest
from training.mazes import Maze
from training.render import draw, image_data_url
from training.report import charts, html, learning, pictures
from training.report.run import read

VOID = {"meta", "img", "br"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("base")
    (base / "config.json").write_text("{}")
    return sample_run.make(tmp_path_factory.mktemp("runs") / "sample", base)


@pytest.fixture
def run_dir(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "sample"))


def text_of(run_dir: Path) -> str:
    return report.write(run_dir).read_text()


class Balance(HTMLParser):
    """Fails on tags that are closed in the wrong order; collects classes and image sources."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.classes: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.classes.append(values.get("class") or "")
        if tag == "img":
            self.sources.append(values["src"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    @classmethod
    def of(cls, text: str) -> "Balance":
        parser = cls()
        parser.feed(text)
        parser.close()
        assert not parser.open
        return parser


def test_the_page_stands_alone_and_is_well_formed(run_dir):
    text = text_of(run_dir)
    parsed = Balance.of(text)
    assert all(source.startswith("data:image/png;base64,") for source in parsed.sources)
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)
    charts_found = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(charts_found) == 6
    for chart in charts_found:
        ElementTree.fromstring(chart)
    assert "Not in this report" not in text


def test_the_same_run_gives_the_same_page(run_dir):
    assert text_of(run_dir) == text_of(run_dir)


def test_solve_rates_stand_beside_interval_and_ceiling(run_dir):
    text = " ".join(text_of(run_dir).split())
    for label in ("baseline", "final", "served"):
        summary = summarize(read_records(run_dir / "evaluations" / f"{label}.jsonl"))
        assert f"{summary.solved} of {summary.n}" in text
        assert f"{summary.low:.1%} to {summary.high:.1%}" in text
        assert f"<strong>{summary.solve_rate:.1%}</strong>" in text
    assert text.count("<td>ceiling</td>") == 1
    assert "SkyRL's pass@1" in text
    assert "64 of 64 test episodes took exactly the trainer's actions" in text


def test_every_sealed_split_stands_with_its_variants(run_dir):
    rows = learning.sealed(read(run_dir))
    names = ["test", "test-512", "ood", "bigger", "mirrored", "recoloured"]
    assert [row.name for row in rows] == names
    assert [row.part for row in rows] == [False] * 3 + [True] * 3
    whole, parts = rows[2], rows[3:]
    assert [sum(part.after.solved for part in parts), sum(part.after.n for part in parts)] == [
        whole.after.solved,
        whole.after.n,
    ]
    assert sum(part.won - part.lost for part in parts) == whole.after.solved - whole.before.solved
    text = text_of(run_dir)
    assert all(f"{row.after.solved} of {row.after.n}" in text for row in rows)


def test_a_repeated_play_of_a_sealed_split_is_shown_as_such(run_dir):
    plays = learning.plays(read(run_dir))
    assert [play["label"] for play in plays if play["repeat"]] == ["served"]
    assert len(plays) == 7
    text = text_of(run_dir)
    assert text.count("<strong>repeat</strong>") == 1
    assert "to compare the server" in text


def test_imitation_for_the_same_cpu_time_stands_beside_the_run(run_dir):
    assert "Beside imitation" not in text_of(run_dir)
    whole = summarize(read_records(run_dir / "evaluations" / "baseline.jsonl")).to_json()
    splits = {"test": whole | {"solve_rate": 0.4375}, "test-512": whole}
    teachers = {name: {"cpu_s": 401.0, "dev": [[0, 0.5], [401, 0.9]]} for name in ("imitation", "oracle")}
    policies = {name: part | {"splits": splits} for name, part in teachers.items()}
    made = {"run": {"cpu_s": 400.0}, "policies": policies | {"perception": {"splits": splits}}}
    (run_dir / "comparison.json").write_text(json.dumps(made))
    lines = learning.comparison(read(run_dir))
    assert [line.cpu_s for line in lines] == [0.0, 400.0, 401.0, 401.0, None]
    text = text_of(run_dir)
    Balance.of(text)
    assert "Beside imitation" in text
    assert text.count("43.8%") >= 3
    assert "6 min 41 s" in text


def test_pass_at_1_counts_as_skyrl_does(run_dir):
    played = read(run_dir).before
    positive = sum(record.score > 0 for record in played.records)
    assert played.pass_at_1 == positive / 64
    assert positive > played.summary.solved


def test_the_grid_shows_every_maze_with_its_paired_outcome(run_dir):
    run = read(run_dir)
    pair = paired(run.before.records, run.after.records)
    classes = Balance.of(text_of(run_dir)).classes
    found = {kind: classes.count(f"maze {kind}") for kind in pictures.KINDS}
    assert found == {"gained": pair.won, "both": pair.both, "lost": pair.lost, "neither": pair.neither}
    assert sum(found.values()) == 64
    assert found["gained"] > found["lost"] > 0


def test_a_film_shows_what_the_policy_saw_and_did(run_dir):
    records = read(run_dir).before.records
    solved = next(record for record in records if record.solved)
    frames = pictures.film(solved)
    maze = Maze.from_json(solved.task)
    assert len(frames) == solved.turns
    assert frames[0].image == image_data_url(draw(maze, maze.start))
    assert frames[-1] == pictures.Frame(image_data_url(draw(maze, maze.goal)), "stop", "solved")
    late = next(record for record in records if record.turns == 10 and not record.solved)
    assert [frame.note for frame in pictures.film(late)][-1] == "out of turns"
    mumbled = next(record for record in records if record.malformed)
    assert ("✕", "no action") in {(frame.action, frame.note) for frame in pictures.film(mumbled)}


def test_strips_show_different_ways_to_fail(run_dir):
    run = read(run_dir)
    shown = pictures.strips(pictures.grid(run.before.records, run.after.records))
    gained = [strip for strip in shown if strip.cell.kind == "gained"]
    assert len(gained) == 3
    assert len({strip.before[-1].note for strip in gained}) > 1
    assert "lost" in {strip.cell.kind for strip in shown}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("metrics.jsonl", "No learning curve: metrics.jsonl is not here."),
        ("timings.json", "No times of the stages: timings.json is not here."),
        ("evaluations/baseline.jsonl", "The test before training was not played"),
        ("evaluations/final.jsonl", "The test after training was not played"),
    ],
)
def test_a_missing_part_is_named_and_the_rest_is_shown(name, sentence, run_dir):
    (run_dir / name).unlink()
    text = text_of(run_dir)
    Balance.of(text)
    assert sentence in text
    assert "Solve rate on the test" in text


def test_a_recipe_is_taken_from_the_manifest_where_it_stands_too(run_dir):
    (run_dir / "recipe.json").unlink()
    assert read(run_dir).recipe["name"] == "maze-rehearsal"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("metrics.jsonl", "{]\n", "No learning curve: metrics.jsonl could not be read ("),
        ("metrics.jsonl", '{"loss": 1}\n', "No learning curve: metrics.jsonl could not be read"),
        ("timings.json", '{"a": 1}', "No times of the stages: timings.json could not be read"),
        ("run.json", "[]", "No lineage: run.json could not be read (not an object)"),
        (
            "evaluations/final.jsonl",
            '{"solved": true}\n',
            "No evaluation: evaluations/final.jsonl could not be read (",
        ),
        ("evaluations/final.jsonl", "", "No evaluation: evaluations/final.jsonl could not be read ("),
    ],
)
def test_a_damaged_part_is_named_and_the_rest_is_shown(name, content, sentence, run_dir):
    (run_dir / name).write_text(content)
    text = text_of(run_dir)
    Balance.of(text)
    assert sentence in text


def test_a_finished_play_that_was_changed_is_not_shown(run_dir):
    path = run_dir / "evaluations" / "final.jsonl"
    shorten(path)
    text = text_of(run_dir)
    assert "evaluations/final.jsonl could not be read (" in text
    assert "final.jsonl is not what was recorded on 20" in text
    assert "final" not in read(run_dir).evaluations


@pytest.mark.parametrize("still", ["evaluations", "test_plays"])
def test_a_play_that_one_of_manifest_and_seal_notes_is_not_exchanged(run_dir, still):
    """Taking the other entry out of the manifest helps nobody: it takes both."""
    path = run_dir / "evaluations" / "final.jsonl"
    with editing(run_dir) as manifest:
        if still == "test_plays":
            del manifest["evaluations"]["final"]
        else:
            manifest["test_plays"] = [play for play in manifest["test_plays"] if play["label"] != "final"]
    assert "final" not in read(run_dir).evaluations
    shorten(path, 5)
    assert "final.jsonl is not what was recorded on 20" in text_of(run_dir)
    shutil.copyfile(run_dir / "evaluations" / "baseline.jsonl", path)
    run = read(run_dir)
    assert "final" not in run.evaluations
    assert not any("not played" in sentence for sentence in run.missing)


def test_a_play_that_is_not_finished_is_no_result(run_dir):
    for label in ("final", "dev-0010"):
        shorten(run_dir / "evaluations" / f"{label}.jsonl", 40)
        with editing(run_dir) as manifest:
            del manifest["evaluations"][label]
            manifest["test_plays"] = [play for play in manifest["test_plays"] if play["label"] != label]
    text = text_of(run_dir)
    assert "evaluations/final.jsonl is of a play that is not finished (40 records)." in text
    assert "evaluations/dev-0010.jsonl is of a play that is not finished (40 records)." in text
    assert " of 40" not in text
    assert read(run_dir).after is None
    assert [step for step, _ in read(run_dir).dev()] == [0, 20]


def test_without_the_manifest_nothing_is_known_to_be_finished(run_dir):
    (run_dir / "run.json").unlink()
    text = text_of(run_dir)
    Balance.of(text)
    assert "No lineage: run.json is not here." in text
    assert "evaluations/baseline.jsonl is of a play that is not finished (64 records)." in text
    assert "Learning curve" in text
    assert "Solve rate on the test" not in text


def shorten(path: Path, records: int = 50) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:records]))


@contextmanager
def editing(run_dir: Path) -> Iterator[dict[str, Any]]:
    path = run_dir / "run.json"
    manifest = json.loads(path.read_text())
    yield manifest
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"evaluations": []}, "No evaluations: run.json holds something else there."),
        ({"evaluations": {"final": []}}, "No evaluations[final]: run.json holds something else there."),
        ({"evaluations": {"final": {"records": 7}}}, "No evaluations[final]: run.json holds something"),
        ({"test_plays": {}}, "No test_plays: run.json holds something else there."),
        ({"test_plays": [{}]}, "No test_plays[0]: run.json holds something else there."),
        ({"test_plays": None}, "No test_plays: run.json holds something else there."),
        ({"attempts": ["cpu"]}, "No attempts[0]: run.json holds something else there."),
        ({"checkpoints": 20}, "No checkpoints: run.json holds something else there."),
    ],
)
def test_a_section_of_the_manifest_that_is_damaged_is_named_and_the_rest_is_shown(changes, sentence, run_dir):
    with editing(run_dir) as manifest:
        manifest.update(changes)
    text = text_of(run_dir)
    Balance.of(text)
    assert sentence in text
    assert "<h2>Lineage</h2>" in text


def test_a_damaged_entry_takes_no_other_with_it(run_dir):
    with editing(run_dir) as manifest:
        manifest["evaluations"]["odd"] = []
        manifest["test_plays"][1:1] = [{}, 7]
    run = read(run_dir)
    assert len(learning.plays(run)) == 7
    assert run.before
    assert run.after
    assert len(run.missing) == 3


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("recipe.json", '{"optimization": 7}', "No agreement of trainer and engine: "),
        ("metrics.jsonl", '{"step": 1, "train_solve_rate": "most"}\n', "No learning curve: "),
        ("metrics.jsonl", '{"step": 1, "generate_seconds": {"a": 1}}\n', "No times of the steps: "),
        ("metrics.jsonl", '{"step": 1e999}\n', "No learning curve: "),
        ("comparison.json", '{"run": 7}', "No table beside imitation: "),
        ("comparison.json", '{"policies": []}', "No curve of imitation: "),
        ("run.json", "[" * 100_000, "No lineage: "),
    ],
)
def test_a_part_of_another_form_is_named_and_the_rest_is_shown(name, content, sentence, run_dir):
    (run_dir / name).write_text(content)
    text = text_of(run_dir)
    Balance.of(text)
    assert sentence in text
    assert "<h2>How to read this</h2>" in text


def test_values_of_other_kinds_are_shown_as_they_stand(run_dir):
    with editing(run_dir) as manifest:
        manifest.update(commit=7, created=8, run=9, image=["a"], finished=None)
        manifest["test_plays"][0]["again"] = 10
        del manifest["test_plays"][1]["again"]
    (run_dir / "timings.json").write_text('[{"stage": 1, "seconds": NaN}]')
    text = text_of(run_dir)
    Balance.of(text)
    assert '<code title="7">7</code>' in text


def test_text_that_utf_8_cannot_hold_is_escaped(run_dir):
    half = "\ud800"
    with editing(run_dir) as manifest:
        manifest.update(commit=half, run=half, **{half: half})
        manifest["test_plays"][0].update(again=half, played=half)
        manifest["evaluations"]["final"]["played"] = half
    (run_dir / "timings.json").write_text(json.dumps([{"stage": half, "seconds": 1}]))
    text = text_of(run_dir)
    Balance.of(text)
    assert "<h1>\\ud800</h1>" in text


def test_a_play_is_of_all_tasks_and_of_the_runs_own_policies(run_dir):
    """Whatever both notes say: some of the tasks, or a better run's records, are not this run's result."""
    path = run_dir / "evaluations" / "final.jsonl"
    sound = path.read_text()
    for content, told in (
        (
            "".join(sound.splitlines(keepends=True)[:-1]),
            "final holds 63 episodes, of 63 of the 64 tasks of test",
        ),
        (sound.replace('"policy":"adapter:', '"policy":"adapter:0'), "final was not played by adapter:"),
    ):
        path.write_text(content)
        with editing(run_dir) as manifest:
            for noted in (manifest["evaluations"]["final"], *manifest["test_plays"]):
                if noted.get("label", "final") == "final":
                    noted["records"] = file_digest(path)
        text = text_of(run_dir)
        assert f"No evaluation: evaluations/final.jsonl could not be read ({told}" in text
        assert "Maze by maze" not in text


def test_a_run_that_has_just_begun_has_a_page(run_dir):
    for name in ("metrics.jsonl", "timings.json"):
        (run_dir / name).unlink()
    shutil.rmtree(run_dir / "evaluations")
    Balance.of(text_of(run_dir))


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds nothing of a run"):
        report.write(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        report.write(tmp_path / "nowhere")


def test_a_step_done_again_after_a_resume_counts_once_and_a_torn_line_not_at_all(run_dir):
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 7, "train_solve_rate": 0.125}) + "\n")
        file.write('{"step": 21, "train_so')
    metrics = read(run_dir).metrics
    assert [row["step"] for row in metrics] == list(range(1, 21))
    assert metrics[6]["train_solve_rate"] == 0.125


def test_what_the_files_say_is_text_on_the_page(run_dir):
    manifest = json.loads((run_dir / "run.json").read_text())
    manifest["image"] = "<script>alert(1)</script>"
    (run_dir / "run.json").write_text(json.dumps(manifest))
    assert "<script" not in text_of(run_dir)


def test_only_a_miniature_is_called_one(run_dir):
    assert "This is a miniature" in text_of(run_dir)
    manifest = json.loads((run_dir / "run.json").read_text())
    manifest["attempts"][0]["backend"] = "cuda"
    (run_dir / "run.json").write_text(json.dumps(manifest))
    assert "This is a miniature" not in text_of(run_dir)


@pytest.mark.parametrize(
    ("low", "high", "at_most", "expected"),
    [
        (0, 1, 5, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 40, 8, [0, 5, 10, 15, 20, 25, 30, 35, 40]),
        (1, 20, 8, [5, 10, 15, 20]),
        (0.3, 0.9, 3, [0.4, 0.6, 0.8]),
    ],
)
def test_ticks_are_round(low, high, at_most, expected):
    assert charts.ticks(low, high, at_most) == pytest.approx(expected)


def test_charts_stand_odd_values():
    nan, none = [(1, float("nan")), (2, 0.5)], []
    for points in (nan, none, [(3, 0.0)], [(3, 0.2)]):
        for logarithmic in (False, True):
            chart = charts.Lines("t", "step", [charts.Series("s", "c", points)], logarithmic=logarithmic)
            assert "nan" not in ElementTree.tostring(ElementTree.fromstring(chart.svg())).decode()


@pytest.mark.parametrize(
    ("value", "text"), [(1e-4, "10⁻⁴"), (2.7e-7, "2.7·10⁻⁷"), (0.03, "0.03"), (0.0, "0"), (1.0, "1")]
)
def test_small_values_are_written_as_powers(value, text):
    assert charts.power(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.03, "30 ms"), (8.24, "8.2 s"), (125, "2 min 05 s"), (3780, "1 h 03 min")]
)
def test_seconds_are_written_as_people_say_them(seconds, text):
    assert html.seconds(seconds) == text


def test_checkpoints_of_every_step_are_told_in_few_words(run_dir):
    with editing(run_dir) as manifest:
        manifest["checkpoints"] = [{"step": step} for step in (1, 2, 3, 6, 8, 9)] + [{}]
    assert "1-3, 6, 8-9, ?" in text_of(run_dir)
