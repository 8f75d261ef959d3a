"""TOML files read into frozen, validated objects, with errors a person can act on."""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from training.errors import ConfigError, visible


class Section(BaseModel):
    """A table of a settings file: frozen, and strict about keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def load[Model: Section](path: Path, model: type[Model], overrides: Mapping[str, Any] | None = None) -> Model:
    """Read `path` into `model`; `overrides` are dotted keys that replace values of the file.

    Raises ConfigError naming the file, the key, the value and the permitted ones.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = sorted(p.name for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        raise ConfigError(
            f"{path} does not exist", f"choose one of: {', '.join(near)}" if near else ""
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", "name a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", "correct that line") from None
    for key, value in (overrides or {}).items():
        *tables, leaf = key.split(".")
        table = data
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{key!r} cannot be set: {name!r} is no table", f"see the tables of {path}")
        table[leaf] = value
    return parse(data, model, source=str(path))


def parse[Model: BaseModel](data: Mapping[str, Any], model: type[Model], *, source: str) -> Model:
    """Validate a mapping; every fault found is in the one ConfigError raised."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = [_explain(fault, model) for fault in error.errors()]
        problem = f"{source}: " + visible("; ".join(lines))  # keys are anybody's text
        raise ConfigError(problem, "correct the file and try again") from None


def _explain(fault: Mapping[str, Any], model: type[BaseModel]) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        known = _keys_beside(fault["loc"], model)
        near = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"unknown key {where!r} ({hint})"
    if fault["type"] == "missing":
        return f"{where!r} is missing"
    message = fault["msg"].removeprefix("Value error, ")
    if not where:
        return message
    if not _of_tables(fault["input"]):
        return f"{where} = {fault['input']!r}: {message}"
    # Validators of tables name the value that they mean; the rest of the table would hide it.
    return f"{where}: {message}" if fault["type"] == "value_error" else f"{where} is a table: {message}"


def _of_tables(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and any(map(_of_tables, value)))


def _keys_beside(loc: tuple[Any, ...], model: type[BaseModel]) -> list[str]:
    """The keys that the table holding `loc` may have."""
    current: Any = model
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        current = _inner_model(current.model_fields[part].annotation)
        if current is None:
            return []
    return sorted(current.model_fields)


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, tuple, list, dict):
        for inner in get_args(annotation):
            found = _inner_model(inner)
            if found is not None:
                return found
    return None
