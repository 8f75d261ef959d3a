"""`cdk synth` as a user calls it, and the linter on what it writes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cdk_app import settings
from stacks.environment import Environment
from tests.synth.conftest import ENDPOINT, ROOT

CDK = ROOT / "node_modules" / ".bin" / "cdk"
# A dependency that the CDK states twice, and an output that repeats an imported name: both harmless.
NOISE = ("W3005", "W6001")


@pytest.fixture(scope="module")
def without_credentials(tmp_path_factory) -> dict[str, str]:
    nothing = tmp_path_factory.mktemp("aws") / "none"
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "CDK_"))}
    return kept | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "AWS_CONFIG_FILE": str(nothing),
        "AWS_SHARED_CREDENTIALS_FILE": str(nothing),
        "AWS_EC2_METADATA_DISABLED": "true",
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        "CI": "true",
    }


def _synth(env: dict[str, str], out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    if not CDK.exists():
        absent = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        absent("the cdk CLI is not installed: run `npm ci`")
    return subprocess.run(
        [str(CDK), "synth", "--quiet", "--output", str(out), *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper", "dev", "production"])
def test_synth_needs_no_credentials_and_the_templates_pass_both_linters(name, without_credentials, tmp_path):
    """The CDK's own validator is fatal by cdk.json, so a finding of its fails the synth."""
    _synthesize_and_lint(settings.load(name), name, without_credentials, tmp_path)


@pytest.mark.slow
def test_templates_of_an_endpoint_pass_both_linters_too(without_credentials, tmp_path):
    path = tmp_path / "dev.toml"
    path.write_text((settings.FOLDER / "dev.toml").read_text() + ENDPOINT)
    _synthesize_and_lint(settings.load(path), str(path), without_credentials, tmp_path / "out")


def _synthesize_and_lint(environment: Environment, chosen: str, env: dict[str, str], out: Path) -> None:
    done = _synth(env, out, "-c", f"environment={chosen}")
    assert done.returncode == 0, done.stderr
    templates = sorted(out.glob("*.template.json"))
    prefix = f"skypod-{environment.name}-"
    assert [path.name.removeprefix(prefix).split(".")[0] for path in templates] == sorted(environment.parts)
    linted = subprocess.run(
        [str(Path(sys.executable).parent / "cfn-lint"), "--format", "json", *map(str, templates)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    findings = [f for f in json.loads(linted.stdout or "[]") if f["Rule"]["Id"] not in NOISE]
    assert findings == []


@pytest.mark.slow
def test_an_unknown_environment_ends_synth_with_the_known_ones(without_credentials, tmp_path):
    done = _synth(without_credentials, tmp_path, "-c", "environment=papre")
    assert done.returncode != 0
    assert "choose one of: dev.toml, paper.toml, production.toml" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_the_pinned_cli_is_the_current_line_and_names_no_registry():
    package = json.loads((ROOT / "package.json").read_text())
    lock_text = (ROOT / "package-lock.json").read_text()
    version = package["devDependencies"]["aws-cdk"]
    assert version.startswith("2.")  # 3.0.0 is a stray release that the maintainers withdrew
    assert json.loads(lock_text)["packages"]["node_modules/aws-cdk"]["version"] == version
    assert "://" not in lock_text


def test_synth_imports_no_trainer():
    """Infrastructure work needs neither torch nor Ray nor SkyRL."""
    heavy = ("torch", "ray", "skyrl", "vllm", "transformers", "rehearsal")
    code = f"import sys, cdk_app.app; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_function_code_needs_nothing_but_python_and_boto3(tmp_path):
    """As in the Lambda: the handlers package alone on the path."""
    shutil.copytree(ROOT / "stacks" / "handlers", tmp_path / "handlers")
    modules = [p.stem for p in (tmp_path / "handlers").glob("*.py") if p.stem != "__init__"]
    code = "import importlib, sys\n" + "\n".join(f"importlib.import_module('handlers.{m}')" for m in modules)
    code += "\nours = {m.split('.')[0] for m in sys.modules} & {'stacks', 'training', 'kubernetes', 'yaml'}"
    code += "\nprint(sorted(ours))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr
