"""Which metrics a PromQL expression asks for, so that none is asked for that nobody emits."""

import re
from collections.abc import Set

# Left out of an expression before its words are looked at: labels, strings, ranges, Grafana's variables.
_NO_METRICS = re.compile(
    r'"(?:[^"\\]|\\.)*"'
    r"|\{[^{}]*\}"
    r"|\[[^\[\]]*\]"
    r"|\$\w+"
    r"|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)"
)
# Not the unit of a duration, as in `offset 5m`.
_WORD = re.compile(r"(?<![0-9a-zA-Z_:])[a-zA-Z_:][a-zA-Z0-9_:]*(\s*\()?")
_KEYWORDS = frozenset({"and", "or", "unless", "offset", "bool", "group_left", "group_right", "inf", "nan"})
# Aggregations may have their grouping in front of the parenthesis: `sum by (run) (x)`.
_AGGREGATIONS = frozenset({"sum", "avg", "min", "max", "count", "topk", "bottomk", "quantile", "stddev"})


def names(expression: str) -> set[str]:
    """The metric names in `expression`."""
    rest = _NO_METRICS.sub(" ", re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression))
    found = set()
    for match in _WORD.finditer(rest):
        word = match[0].strip()
        if not match[1] and word.lower() not in _KEYWORDS | _AGGREGATIONS:
            found.add(word)
    return found


def checked(expression: str, known: Set[str]) -> str:
    """The expression itself. Raises ValueError naming the metrics in it that are not in `known`."""
    unknown = sorted(names(expression) - known)
    if unknown:
        raise ValueError(f"nobody emits {', '.join(unknown)}, which {expression!r} asks for")
    return expression
