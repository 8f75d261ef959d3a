"""One JSON line per request and event, on standard output. Never words, pictures, keys or addresses of it."""

import json
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from serving.gateway.metrics import Metrics


@dataclass
class Record:
    """What becomes known of a request, in the order in which it does. Times in seconds since its headers."""

    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    key: str = ""
    adapter: str = ""
    variant: str = ""
    stream: bool = False
    images: int = 0
    body_bytes: int = 0
    answer_bytes: int = 0
    queue_s: float | None = None
    first_byte_s: float | None = None
    status: int = 0
    outcome: str = "ok"
    began: float = field(default_factory=time.perf_counter)

    def now(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.began

    def close(self, metrics: Metrics) -> None:
        """Count it and write its line."""
        total_s = self.now()
        metrics.count(self.adapter, self.variant, self.outcome, total_s, self.first_byte_s)
        fields = {name: value for name, value in vars(self).items() if name != "began"}
        rounded = {name: round(v, 6) if isinstance(v, float) else v for name, v in fields.items()}
        write("request", **rounded, total_s=round(total_s, 6))


def write(event: str, **fields: Any) -> None:
    """Write one event. Where nobody reads, or the disk is full, it is lost: a log is worth no answer."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    with suppress(OSError):
        print(json.dumps({"at": at, "event": event, **fields}), flush=True)
