"""An export stands alone: its script sees the solve rate again, with nothing of ours but the rules."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from serving import export
from serving.adapter import package
from tests.serving.scripted_server import oracle
from tests.serving.test_vllm import PYTHON, environment, folder  # noqa: F401
from training.environments import named
from training.errors import ConfigError, DataError
from training.evaluate import EvaluationSettings, play, read_records
from training.mazes import published
from training.render import image_data_url

MAZES = published("easy")[:6]
SETTINGS = EvaluationSettings(named("maze", squares_per_move=2), max_turns=10, policy="adapter:0")


class Oracle:
    """Walks the shortest way."""

    def act(self, conversations):
        knows = oracle(MAZES)
        return [knows([image_data_url(one.image)], []) for one in conversations]


@pytest.fixture
def packed(export, base_dir, tmp_path) -> Path:
    adapter = package(export, tmp_path / "packed", base_dir=base_dir, run_id="r", evaluation_digest="e")
    return tmp_path / "packed" / adapter.name


def write(out: Path, packed: Path, records=None, **changes):
    records = play(Oracle(), MAZES, SETTINGS) if records is None else records
    given = {"dtype": "float32", "max_tokens": 4, "banned": [3]} | changes
    return export.write(out, packed, records, **given)


def test_the_script_has_no_more_than_twenty_lines():
    assert len([line for line in export.SCRIPT.read_text().splitlines() if line]) <= 20


def test_the_rules_of_the_game_work_without_this_project(packed, tmp_path):
    adapter = write(tmp_path / "out", packed)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md", "adapter", "how.json", "play.py", "training",
    ]  # fmt: skip
    assert adapter.name in (tmp_path / "out" / "README.md").read_text()
    code = (
        "import json, sys; from training import environments, evaluate; how = json.load(open('how.json'))\n"
        "rules = evaluate.EvaluationSettings(environments.named(**how['environment']), **how['rules'])\n"
        "assert [rules.environment.load(task).to_json() for task in how['tasks']] == how['tasks']\n"
        "assert how['expected']['settings'] == rules.digest\n"
        "print({m.__file__ for n, m in sys.modules.items() if n.startswith('training')})\n"
        "print([n for n in ('torch', 'pydantic', 'click') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, ''); {code}"],
        cwd=tmp_path / "out", capture_output=True, text=True, env={}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(Path(export.__file__).parents[1]) not in done.stdout
    assert done.stdout.endswith("[]\n")


def test_an_export_is_written_whole_or_not_at_all(packed, tmp_path):
    records = play(Oracle(), MAZES, SETTINGS)
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="exists"):
        write(tmp_path / "there", packed, records)
    with pytest.raises(DataError, match="no records"):
        write(tmp_path / "out", packed, [])
    (packed / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(DataError, match="has digest"):
        write(tmp_path / "out", packed, records)
    assert not (tmp_path / "out").exists()


@pytest.mark.skyrl
def test_plain_transformers_and_peft_play_as_the_trainer_did(folder, tmp_path):  # noqa: F811
    """The records are of an engine of ours; the script shares no code with it but the rules."""
    adapter = package(
        folder / "export", tmp_path, base_dir=folder / "base", run_id="r", evaluation_digest="e"
    )
    code = (
        "import sys; from pathlib import Path; from serving.local import LocalPolicy\n"
        "from tests.serving.test_export import MAZES, SETTINGS, play\n"
        "base, adapter, records = map(Path, sys.argv[1:])\n"
        "play(LocalPolicy(base, adapter), MAZES, SETTINGS, records_path=records)"
    )
    records, packed = tmp_path / "records.jsonl", tmp_path / adapter.name
    run([PYTHON, "-c", code, folder / "base", packed, records], Path(export.__file__).parents[1])
    config = json.loads((folder / "base" / "config.json").read_text())
    banned = [config[f"{name}_token_id"] for name in ("image", "video", "vision_start", "vision_end")]
    write(tmp_path / "out", packed, read_records(records), banned=banned)
    found = json.loads(run([PYTHON, "play.py", folder / "base"], tmp_path / "out", PYTHONPATH=""))
    expected = json.loads((tmp_path / "out" / "how.json").read_text())["expected"]
    assert found == expected
    # An untrained adapter says anything but actions; what it says is in the digest of the records.
    assert all(record.malformed for record in read_records(records))


def run(command, cwd: Path, **changes: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd, env=environment() | changes, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1] if done.stdout else ""
