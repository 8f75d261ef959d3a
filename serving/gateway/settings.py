"""The gateway's settings, from one TOML file whose relative paths are those of its folder."""

import re
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from training.errors import ConfigError
from training.toml_settings import Section, load

Seconds = Annotated[float, Field(gt=0, le=3600)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Upstream(Section):
    """The engine. `model_id` is its name for the base; an adapter is `<model_id>:<adapter>` there.

    `mixes_safely` says that base and adapter requests may share a batch. vLLM's CPU build without
    rehearsal.cpu.lora_ops answers such base requests with an adapter's weights and no error, so the default
    keeps them apart. One gateway can only keep apart what passes through it: run a single one then.
    """

    url: str
    model_id: str
    mixes_safely: bool = False
    key_file: Path | None = None
    connect_s: Seconds = 2.0
    first_byte_s: Seconds = 60.0
    total_s: Seconds = 120.0

    @model_validator(mode="after")
    def _sound(self) -> Self:
        parts = urlsplit(self.url)
        # The log names the url, and so would an error.
        if "@" in self.url or parts.query or parts.fragment:
            raise ValueError("url holds credentials or a query; give the address alone, a key in key_file")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url {self.url!r} is no address; use for example http://127.0.0.1:8000")
        if self.first_byte_s > self.total_s:
            raise ValueError(f"first_byte_s {self.first_byte_s:g} exceeds total_s {self.total_s:g}")
        return self


class Limits(Section):
    """What one request may be, and how many there may be at once.

    `tokens` bounds max_tokens times n and is the default of max_tokens; `text_chars` bounds all words of a
    conversation. `in_flight` requests are with the engine, `queue` more wait up to `wait_s`.
    """

    body_bytes: Count = 16 * 2**20
    messages: Count = 256
    text_chars: Count = 65_536
    images: Count = 32
    image_bytes: Count = 4 * 2**20
    image_pixels: Count = 4 * 2**20
    tokens: Count = 1024
    answer_bytes: Count = 8 * 2**20
    in_flight: Count = 64
    queue: Annotated[int, Field(ge=0)] = 256
    wait_s: Seconds = 30.0
    body_s: Seconds = 30.0
    idle_s: Seconds = 60.0
    stall_s: Seconds = 30.0


class Drain(Section):
    """On SIGTERM: `notice_s` of being not ready but open, so that balancers look away, then at most
    `deadline_s` to finish what was accepted: by default what body_s, wait_s and total_s allow together."""

    notice_s: Annotated[float, Field(ge=0)] = 0.0
    deadline_s: Seconds = 180.0


class Tls(Section):
    certificate: Path
    key: Path


class Settings(Section):
    """`public_name` is the model that everybody asks for. Port 0 takes a free one."""

    public_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    keys: Path
    aliases: Path
    upstream: Upstream
    host: str = "127.0.0.1"
    port: Port = 8080
    control_host: str = "127.0.0.1"
    control_port: Port = 8081
    follow_s: Seconds = 0.5
    limits: Limits = Limits()
    drain: Drain = Drain()
    tls: Tls | None = None


def read(path: Path) -> Settings:
    """The settings of a file; ConfigError names every fault in it."""
    settings, folder = load(path, Settings), path.parent
    upstream, tls = settings.upstream, settings.tls
    if upstream.key_file:
        upstream = upstream.model_copy(update={"key_file": folder / upstream.key_file})
    if tls:
        tls = Tls(certificate=folder / tls.certificate, key=folder / tls.key)
    return settings.model_copy(
        update={
            "keys": folder / settings.keys,
            "aliases": folder / settings.aliases,
            "upstream": upstream,
            "tls": tls,
        }
    )


def upstream_key(upstream: Upstream) -> str | None:
    """The engine's API key, None where it asks for none; ConfigError for what no header carries."""
    if upstream.key_file is None:
        return None
    try:
        key = upstream.key_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{upstream.key_file} cannot be read ({error})", "write the engine's key there"
        ) from None
    if not re.fullmatch("[!-~]+", key):
        raise ConfigError(
            f"{upstream.key_file} holds no key, which is one word of visible ASCII",
            "write the engine's key there, and nothing else",
        )
    return key
