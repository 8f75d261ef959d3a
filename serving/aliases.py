"""Which adapter answers the public name: a small file that a rollout writes and the gateway reads.

The file is replaced in one step, so a reader sees one state or the next. Only its version tells two states
apart: whoever changes it names the version that it knows, and is refused when another came in between.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from training.errors import DataError, SkypodError
from training.files import read_json, write_atomic
from training.locks import locked

ALIASES = ("live", "canary", "previous")
"""The fields of Aliases that name an adapter."""


class ReplacedError(SkypodError):
    """Another rollout or a rollback has changed the aliases; the one that meets this error stops."""

    exit_code = 5


@dataclass(frozen=True)
class Aliases:
    """Names of adapters, as in adapter.json. `live` is None before the first promotion.

    `canary_share` in [0, 1] of the public name's conversations go to `canary`, the others to `live`;
    `previous` stays loaded, for a rollback. `version` counts the changes, 0 before the first.
    """

    version: int = 0
    live: str | None = None
    canary: str | None = None
    canary_share: float = 0.0
    previous: str | None = None

    def __post_init__(self) -> None:
        names = [name for name in (self.live, self.canary, self.previous) if name is not None]
        wrong = None
        if type(self.version) is not int or self.version < 0:
            wrong = f"version is {self.version!r}"
        elif type(self.canary_share) not in (int, float) or not 0 <= self.canary_share <= 1:
            wrong = f"canary_share is {self.canary_share!r}, not in [0, 1]"
        elif any(not isinstance(name, str) or not name for name in names):
            wrong = f"the names are {names!r}"
        elif len(set(names)) < len(names):
            wrong = f"one adapter has two aliases: {', '.join(names)}"
        elif self.canary is None and self.canary_share:
            wrong = f"canary_share is {self.canary_share:g} without a canary"
        if wrong:
            raise DataError(f"aliases: {wrong}", "restore the file, or roll back to a named adapter")

    @property
    def names(self) -> frozenset[str]:
        """The adapters that a server must keep loaded."""
        return frozenset(name for name in (self.live, self.canary, self.previous) if name is not None)


def served_name(model_id: str, adapter: str | None) -> str:
    """How requests name an adapter behind the engine, as Ray Serve LLM spells it; None is the base."""
    return model_id if adapter is None else f"{model_id}:{adapter}"


def read(path: Path) -> Aliases:
    """The aliases as they stand, version 0 where there is no file; DataError when it is none of ours."""
    try:
        content = read_json(path)
    except FileNotFoundError:
        return Aliases()
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path} cannot be read ({error})", "restore the file from the rollouts beside it"
        ) from None
    if not isinstance(content, dict) or set(content) != {field.name for field in fields(Aliases)}:
        raise DataError(f"{path} holds no aliases", "restore the file from the rollouts beside it")
    return Aliases(**content)


def write(path: Path, aliases: Aliases) -> None:
    """Replace the file in one step, whatever it held."""
    write_atomic(path, json.dumps(asdict(aliases), indent=2, sort_keys=True) + "\n")


def change(path: Path, known: Aliases, **to: Any) -> Aliases:
    """Set fields of the aliases that the caller knows; returns what then stands, one version on.

    Raises ReplacedError when the file holds another version than `known`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent):
        require(path, known)
        changed = replace(known, version=known.version + 1, **to)
        write(path, changed)
    return changed


def require(path: Path, known: Aliases) -> None:
    """Raises ReplacedError when the file holds another version than `known`."""
    found = read(path)
    if found != known:
        raise ReplacedError(
            f"{path} has version {found.version} (live {found.live}), "
            f"not {known.version} (live {known.live})",
            "another promotion or rollback came first; look at `skypod adapters`",
        )
