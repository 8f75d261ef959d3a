"""Environments by name or path: `environments/<name>.toml`, read into `stacks.environment.Environment`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stacks.environment import Environment
from training import toml_settings

FOLDER = Path(__file__).resolve().parent.parent / "environments"
DEFAULT = "paper"

__all__ = ["DEFAULT", "FOLDER", "Environment", "absolute", "load"]


def load(name_or_path: str | Path = DEFAULT, overrides: Mapping[str, Any] | None = None) -> Environment:
    """The environment of that name, or of that TOML file; `overrides` are dotted keys.

    Raises ConfigError naming each unknown key with the nearest valid one, and each value out of range with
    the permitted range.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = FOLDER / f"{name_or_path}.toml"
    return toml_settings.load(path, Environment, overrides)


def absolute(name_or_path: str) -> str:
    """The same environment for a process in another folder: a path is made absolute, a name stays a name."""
    path = Path(name_or_path)
    return str(path.absolute()) if path.suffix == ".toml" else name_or_path
