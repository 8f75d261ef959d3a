"""What the gateway measures, per adapter: vLLM itself labels all LoRA traffic with the base's name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BASE, OTHER = "base", "other"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """`outcome` is ok or the kind of a refusal; `adapter` is "" where it came to none, base for the base.

    `aliased` tells the adapters that have an alias at the moment. Only those, and those that had one, have
    series of their own: whoever may probe can invent names without end.
    """

    def __init__(self, aliased: Callable[[], frozenset[str]]):
        self._aliased = aliased
        self._own = {"", BASE}
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "skypod_gateway_requests",
            "Requests by the adapter that answered, why it was chosen, and outcome",
            ["adapter", "variant", "outcome"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "skypod_gateway_request_seconds",
            "From the request's headers to the answer's last byte, answered requests only",
            ["adapter", "variant"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._first_byte_seconds = Histogram(
            "skypod_gateway_first_byte_seconds",
            "From the request's headers to the answer's first byte, answered requests only",
            ["adapter", "variant"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.queue_seconds = Histogram(
            "skypod_gateway_queue_seconds",
            "Wait for a place with the engine",
            buckets=(0.001, *_SECONDS),
            registry=self.registry,
        )
        self._in_flight = Gauge(
            "skypod_gateway_in_flight",
            "Accepted requests without their answer's end, those in the queue included",
            ["adapter"],
            registry=self.registry,
        )

    def count(
        self, adapter: str, variant: str, outcome: str, total_s: float, first_byte_s: float | None
    ) -> None:
        """Count a request that has ended."""
        series = self._series(adapter)
        self._requests.labels(series, variant, outcome).inc()
        if outcome == "ok":
            self._seconds.labels(series, variant).observe(total_s)
            if first_byte_s is not None:
                self._first_byte_seconds.labels(series, variant).observe(first_byte_s)

    @contextmanager
    def in_flight(self, adapter: str) -> Iterator[None]:
        """Count a request while inside."""
        gauge = self._in_flight.labels(self._series(adapter))
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def watch(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """A gauge that is read when asked for."""
        Gauge(f"skypod_gateway_{name}", meaning, registry=self.registry).set_function(value)

    def _series(self, adapter: str) -> str:
        self._own |= self._aliased()
        return adapter if adapter in self._own else OTHER

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)
