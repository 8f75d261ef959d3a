"""What the users of a canary saw: by the gateway's counters, or without a gateway by questions of ours."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from prometheus_client.parser import text_string_to_metric_families

from serving.aliases import Aliases
from serving.endpoint import Retries
from serving.rollout.candidate import Questions
from serving.rollout.destination import Destination, wait
from serving.rollout.rules import Rules, Seen
from training.errors import SkypodError, SubstrateError

BASE = "base"
_CHOSEN = ("live", "canary")
_FAILED = ("upstream_", "adapter_missing", "answer_too_large")
_ANSWER_S = 10.0
Counters = Mapping[str, Mapping[str, float]]
"""By adapter: "ok" and "failed" requests, and answers by the upper edge of their histogram's bucket."""


class Traffic(Protocol):
    """Requests to live and canary. `live` is None for the base."""

    def begin(self) -> Counters:
        """Where the counting starts; plain values, which survive in the rollout's record."""

    def watch(
        self, live: str | None, canary: str, since: Counters, rules: Rules, ended: Callable[[], bool]
    ) -> tuple[Seen, Seen]:
        """What live and canary did since `begin`, once the canary has answered enough, the time is up, or it
        has `ended`."""

    def trouble(self, aliases: Aliases) -> str:
        """Why requests do not follow these aliases; "" when they do."""

    def released(self, name: str, timeout_s: float) -> bool:
        """Whether no request comes to an adapter any more and none is under way."""


class GatewayTraffic:
    """The gateway's control port; `key` is one that may control."""

    def __init__(self, url: str, key: str):
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(_ANSWER_S, connect=5.0),
            trust_env=False,
        )

    def begin(self) -> Counters:
        return self._counters()

    def watch(
        self, live: str | None, canary: str, since: Counters, rules: Rules, ended: Callable[[], bool]
    ) -> tuple[Seen, Seen]:
        wait(lambda: ended() or self._seen(canary, since).requests >= rules.requests, rules.period_s)
        return self._seen(live or BASE, since), self._seen(canary, since)

    def trouble(self, aliases: Aliases) -> str:
        # The gateway reads the aliases again before it answers: they are in force from here on.
        told = self._get("/aliases").json()
        if told["version"] == aliases.version:
            return ""
        why = f": {told['trouble']}" if told.get("trouble") else ""
        return f"the gateway follows version {told['version']} of the aliases, not {aliases.version}{why}"

    def released(self, name: str, timeout_s: float) -> bool:
        answer = self._get(f"/adapters/{name}", params={"wait_s": timeout_s}, timeout=timeout_s + _ANSWER_S)
        return bool(answer.json()["drained"])

    def _seen(self, adapter: str, since: Counters) -> Seen:
        now, before = self._counters().get(adapter, {}), since.get(adapter, {})
        if any(now.get(name, 0) < count for name, count in before.items()):
            before = {}  # the gateway was started again, and counts from zero
        counts = {name: count - before.get(name, 0) for name, count in now.items()}
        failed = int(counts.pop("failed", 0))
        ok = int(counts.pop("ok", 0))
        return Seen(ok + failed, failed, _percentile({float(edge): n for edge, n in counts.items()}))

    def _counters(self) -> Counters:
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(self._get("/metrics").text):
            for name, labels, value, *_ in family.samples:
                if labels.get("variant") not in _CHOSEN:
                    continue  # a probe asks what it likes, and as slowly
                if name == "skypod_gateway_requests_total":
                    kind = _kind(labels["outcome"])
                elif name == "skypod_gateway_request_seconds_bucket":
                    kind = labels["le"]
                else:
                    continue
                if kind:
                    counts = found.setdefault(labels["adapter"], {})
                    counts[kind] = counts.get(kind, 0) + value
        return found

    def _get(self, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.get(path, **options)
        except httpx.HTTPError as error:
            raise SubstrateError(
                f"the gateway's {self._http.base_url}{path} does not answer ({error})", "is the gateway up?"
            ) from error
        if answer.is_success:
            return answer
        raise SubstrateError(
            f"the gateway's {self._http.base_url}{path} refuses (status {answer.status_code})",
            "is this its control port, and may the key control it?",
        )


@dataclass(frozen=True)
class Questioning:
    """Without a gateway nobody comes by the public name: live and canary are asked in turn, one at a time.

    `questions` may be None where nothing is to be watched.
    """

    destination: Destination
    questions: Questions | None

    def begin(self) -> Counters:
        return {}

    def watch(
        self, live: str | None, canary: str, since: Counters, rules: Rules, ended: Callable[[], bool]
    ) -> tuple[Seen, Seen]:
        tries = Retries(attempts=1)
        took: dict[str | None, list[float]] = {live: [], canary: []}
        failed = {live: 0, canary: 0}
        with (
            self.questions.policy(self.destination, live, retries=tries) as first,
            self.questions.policy(self.destination, canary, retries=tries) as second,
        ):
            for number in range(rules.requests):
                if ended():
                    break
                question = self.questions.canaries[number % len(self.questions.canaries)]
                for name, policy in ((live, first), (canary, second)):
                    began = time.perf_counter()
                    try:
                        policy.act([question])
                    except SkypodError:
                        failed[name] += 1
                    else:
                        took[name].append(time.perf_counter() - began)
        if not took[live] and not ended():
            raise SubstrateError(f"{self.destination.url} answers nothing", "look at the server's log")
        return _timed(took[live], failed[live]), _timed(took[canary], failed[canary])

    def trouble(self, aliases: Aliases) -> str:
        return ""

    def released(self, name: str, timeout_s: float) -> bool:
        return True


def _kind(outcome: str) -> str | None:
    """None for what gateway or engine refuse: what a client asks wrongly says nothing of the adapter."""
    if outcome == "ok":
        return "ok"
    return "failed" if outcome.startswith(_FAILED) and outcome != "upstream_refused" else None


def _timed(took: Sequence[float], failed: int) -> Seen:
    p95 = sorted(took)[int(0.95 * (len(took) - 1))] if took else None
    return Seen(len(took) + failed, failed, None if p95 is None else (p95, p95))


def _percentile(cumulative: Mapping[float, float]) -> tuple[float, float] | None:
    """The edges of the bucket in which the 95th percentile lies."""
    edges = sorted(cumulative)
    if not edges or not cumulative[edges[-1]]:
        return None
    at = next(i for i, edge in enumerate(edges) if cumulative[edge] >= 0.95 * cumulative[edges[-1]])
    return (edges[at - 1] if at else 0.0), edges[at]
