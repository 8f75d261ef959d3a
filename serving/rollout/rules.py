"""When a canary is good enough: the bounds, and what breaks them in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from training.errors import ConfigError
from training.evaluate import EvaluationRecord, paired


@dataclass(frozen=True)
class Rules:
    """Shares are in [0, 1], times in seconds.

    `share` of the public name's conversations go to the canary until it has answered `requests`, for at most
    `period_s`. It is worse than what is live when it loses tasks that the other solves, significantly (exact
    McNemar, two-sided, below `alpha`) or more than `lost_share` of them; when more of its requests fail, by
    more than `more_errors`; or when its 95th percentile is more than `slower` times the other's and
    `slower_s` above it.
    """

    share: float = 0.1
    requests: int = 50
    period_s: float = 600.0
    alpha: float = 0.05
    lost_share: float = 0.1
    more_errors: float = 0.01
    slower: float = 1.5
    slower_s: float = 0.25
    drain_s: float = 60.0

    def __post_init__(self) -> None:
        wrong = [
            f"{name} = {getattr(self, name)}"
            for name in ("alpha", "lost_share", "more_errors")
            if not 0 <= getattr(self, name) <= 1
        ]
        wrong += [
            f"{name} = {getattr(self, name)}"
            for name in ("period_s", "slower", "slower_s", "drain_s")
            if not 0 <= getattr(self, name) < math.inf
        ]
        if not 0 < self.share <= 1:
            wrong.append(f"share = {self.share}")
        if self.requests < 1:
            wrong.append(f"requests = {self.requests}")
        if wrong:
            raise ConfigError(
                f"no canary under {', '.join(wrong)}",
                "shares are in [0, 1], that of the canary is above 0; it answers at least 1 request; "
                "times are seconds that end",
            )


@dataclass(frozen=True)
class Seen:
    """Requests that an adapter answered in a while: how many, how many failed, and bounds in seconds of the
    time that 95 % of the answers took at most (None when nothing was answered)."""

    requests: int
    errors: int
    p95_s: tuple[float, float] | None

    @property
    def error_rate(self) -> float:
        return self.errors / self.requests if self.requests else 0.0


@dataclass(frozen=True)
class Played:
    """Candidate against live on the same tasks; `regressions` are the tasks that only the other solved."""

    tasks: int
    solved: int
    solved_by_live: int
    won: int
    lost: int
    p_value: float
    regressions: tuple[str, ...]


def compare(live: Sequence[EvaluationRecord], candidate: Sequence[EvaluationRecord]) -> Played:
    """Pair two plays task by task; DataError unless they are of the same tasks and rules."""
    pair = paired(live, candidate)
    solved = {record.key for record in candidate if record.solved}
    lost = tuple(sorted(record.digest for record in live if record.solved and record.key not in solved))
    return Played(len(candidate), len(solved), pair.both + pair.lost, pair.won, pair.lost, pair.p_value, lost)


def worse_at_play(played: Played, rules: Rules) -> list[str]:
    """Why the candidate plays worse than what is live; empty when it does not."""
    reasons = []
    told = f"{played.won} tasks won, {played.lost} lost against live, exact McNemar p = {played.p_value:.2g}"
    if played.lost > played.won and played.p_value < rules.alpha:
        reasons.append(f"{told}: significant at {rules.alpha:g}")
    share = played.lost / played.solved_by_live if played.solved_by_live else 0.0
    if share > rules.lost_share:
        reasons.append(
            f"{told}: {share:.1%} of those that live solves, at most {rules.lost_share:.1%} may be"
        )
    return reasons


def worse_at_work(live: Seen, canary: Seen, rules: Rules) -> list[str]:
    """Why the canary served worse than what is live did; empty when it did not, and was asked enough."""
    reasons = []
    if canary.requests < rules.requests:
        reasons.append(
            f"only {canary.requests} of {rules.requests} requests came to the canary in {rules.period_s:g} s"
        )
    if canary.error_rate > live.error_rate + rules.more_errors:
        reasons.append(
            f"{canary.errors} of {canary.requests} requests to the canary failed "
            f"({canary.error_rate:.1%}), of live {live.error_rate:.1%}"
        )
    if canary.p95_s is not None and live.p95_s is not None:
        # Of a histogram only bounds are known: what they leave open accuses nobody.
        least, most = canary.p95_s[0], live.p95_s[1]
        if least > max(most * rules.slower, most + rules.slower_s):
            reasons.append(
                f"95 % of the canary's answers took {least:.3g} s or more, of live {most:.3g} s at most"
            )
    return reasons
