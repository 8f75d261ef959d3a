"""Who may ask, for what, and how often. The file holds digests of keys, so that reading it gives no access.

Keys are 256 random bits: nobody turns their SHA-256 around, and a slow hash would only slow the gateway.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from serving.gateway.following import Followed
from serving.gateway.refusal import Refusal
from training.errors import ConfigError
from training.files import read_json, write_json
from training.toml_settings import Section

Right = Literal["chat", "probe", "control"]


class Key(Section):
    """`may`: chat with the public name, probe (name aliases and adapters), control (metrics, draining).

    `requests_per_minute` is the lasting rate; a pause of a minute saves up as many.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    may: tuple[Right, ...] = ("chat",)
    requests_per_minute: Annotated[int, Field(ge=1)] = 600
    concurrency: Annotated[int, Field(ge=1)] = 64


class KeyFile(Section):
    keys: tuple[Key, ...]


def read(path: Path) -> tuple[Key, ...]:
    """The keys of a file; ConfigError without quoting it, because someone may have put a key there."""
    try:
        keys = KeyFile.model_validate(read_json(path)).keys
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(f"{path}: {faults}", "make keys with python -m serving.gateway.new_key") from None
    except (OSError, ValueError, RecursionError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise ConfigError(
            f"{path} cannot be read ({what})", "make keys with python -m serving.gateway.new_key"
        ) from None
    if len({key.name for key in keys}) < len(keys) or len({key.sha256 for key in keys}) < len(keys):
        raise ConfigError(f"{path} has a name or a digest twice", "remove one of them")
    return keys


def add(path: Path, name: str, **fields: object) -> str:
    """Make a key, add its digest to the file, and return it: nothing else ever shows it again."""
    token = f"sk-skypod-{secrets.token_urlsafe(32)}"
    entry = {"name": name, "sha256": _digest(token), **fields}
    known = read(path) if path.exists() else ()
    if any(key.name == name for key in known):
        raise ConfigError(f"{path} has a key {name!r} already", "give another name, or remove that one")
    try:
        keys = [*known, Key.model_validate(entry)]
    except ValidationError as error:
        fault = error.errors()[0]
        raise ConfigError(f"key {name!r}: {fault['loc'][0]}: {fault['msg']}", "correct that") from None
    write_json(path, {"keys": [key.model_dump() for key in keys]})
    return token


@dataclass
class _Use:
    allowance: float
    at: float
    in_flight: int = 0


class Keyring:
    """The keys of a followed file, and what each has used."""

    def __init__(self, file: Followed[tuple[Key, ...]]):
        self._file = file
        self._used: dict[str, _Use] = {}

    def identify(self, authorization: str | None, right: Right) -> Key:
        """The key of an Authorization header; refuses unknown keys (401) and missing rights (403)."""
        scheme, _, token = (authorization or "").partition(" ")
        digest = _digest(token.strip())
        found = None
        for key in self._file.value:
            # No early end: the time taken says nothing about how much of a digest was right.
            if hmac.compare_digest(key.sha256, digest):
                found = key
        if found is None or scheme.lower() != "bearer":
            raise Refusal(
                401, "unauthenticated", "no valid API key", "send it as Authorization: Bearer <key>"
            )
        require(found, right)
        return found

    @contextmanager
    def request_of(self, key: Key) -> Iterator[None]:
        """Count a request of this key while it lasts; refuses (429) beyond its rate or concurrency."""
        now = time.monotonic()
        use = self._used.setdefault(key.name, _Use(float(key.requests_per_minute), now))
        per_s = key.requests_per_minute / 60
        allowance = min(key.requests_per_minute, use.allowance + (now - use.at) * per_s)
        use.allowance, use.at = allowance, now
        if allowance < 1:
            problem = f"key {key.name} may ask {key.requests_per_minute} times a minute"
            raise Refusal(429, "rate_limited", problem, "slow down", retry_after_s=(1 - allowance) / per_s)
        if use.in_flight >= key.concurrency:
            problem = f"key {key.name} has {key.concurrency} requests under way"
            raise Refusal(429, "too_many_at_once", problem, "wait for one to end", retry_after_s=1)
        use.allowance -= 1
        use.in_flight += 1
        try:
            yield
        finally:
            use.in_flight -= 1


def require(key: Key, right: Right) -> None:
    """Refuses (403) a key without the right."""
    if right not in key.may:
        raise Refusal(403, "forbidden", f"key {key.name} has no right to {right}", "ask for such a key")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
