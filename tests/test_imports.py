"""The house's import rules, read from the source of every module."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = ("cdk_app", "stacks", "training", "serving", "rehearsal")
SERVING_MAY = {
    "training.errors",
    "training.lineage",
    "training.evaluate",
    "training.mazes",
    "training.environments",
    "training.render",
    "training.files",
    "training.locks",
    "training.toml_settings",
}
STACKS_MAY = {"training.metrics", "training.recipe", "training.errors", "training.toml_settings"}
HEAVY = ("torch", "skyrl", "skyrl_gym", "vllm", "transformers", "peft")


@cache
def imports(path: Path) -> set[str]:
    """Every module named by an import statement of a file, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            is_package = (ROOT / node.module.replace(".", "/") / "__init__.py").is_file()
            found |= {n for n in names if is_package and _is_module(n)} or {node.module}
    return found


def _is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def ours(path: Path) -> set[str]:
    return {name for name in imports(path) if name.split(".")[0] in OURS}


def breaches(package: str, allowed) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(package)
        for name in sorted(ours(path))
        if not allowed(name)
    ]


def test_training_imports_nothing_of_ours():
    assert breaches("training", lambda name: name.startswith("training")) == []


def test_serving_imports_little_of_training():
    assert breaches("serving", lambda name: name.startswith("serving") or name in SERVING_MAY) == []


def test_stacks_import_names_and_needs_only():
    assert breaches("stacks", lambda name: name.startswith("stacks") or name in STACKS_MAY) == []


def test_nothing_imports_the_rehearsal():
    for package in ("cdk_app", "stacks", "training", "serving"):
        assert breaches(package, lambda name: not name.startswith("rehearsal")) == []


def test_only_the_skyrl_package_and_its_cpu_substitute_import_skyrl():
    found = {
        str(path.relative_to(ROOT).parent)
        for package in OURS
        for path in modules(package)
        if any(name.split(".")[0] in ("skyrl", "skyrl_gym") for name in imports(path))
    }
    assert found <= {"training/skyrl", "rehearsal/cpu"}


def test_modules_stay_small():
    sizes = {p: len(p.read_text().splitlines()) for package in OURS for p in modules(package)}
    assert {str(p.relative_to(ROOT)): n for p, n in sizes.items() if n > 450} == {}
    ordered = sorted(n for n in sizes.values() if n)
    assert ordered[len(ordered) // 2] <= 150


def test_light_modules_load_without_torch():
    light = ("cdk_app.app", "cdk_app.command", "cdk_app.players", "rehearsal.command", "serving.client")
    code = f"import sys, {', '.join(light)}; print([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert out.stdout.strip() == "[]"
