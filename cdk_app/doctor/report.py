"""The findings for a person: aligned lines with a mark, the remedy below what needs one."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from cdk_app.doctor.finding import Finding, Status

MARKS = {
    Status.OK: ("✓", "green"),
    Status.WARNING: ("!", "yellow"),
    Status.FAILED: ("✗", "red"),
    Status.UNKNOWN: ("?", "cyan"),
}


def block(findings: Sequence[Finding]) -> str:
    """The findings of one area. A remedy that neighbours share stands once, below the last of them."""
    width = max(len(finding.check) for finding in findings)
    lines = ["", findings[0].area]
    for finding, following in zip(findings, [*findings[1:], None], strict=True):
        mark, colour = MARKS[finding.status]
        needed = ""
        if finding.needed and finding.status is not Status.OK:
            needed = f"; needed: {finding.needed}"
        lines.append(f"  {click.style(mark, fg=colour)} {finding.check:<{width}}  {finding.found}{needed}")
        if finding.remedy and (following is None or following.remedy != finding.remedy):
            lines.append(f"      -> {finding.remedy}")
    return "\n".join(lines)


def counted(findings: Sequence[Finding]) -> str:
    """For example "31 ok, 2 warnings, 1 failed, 3 unknown"."""
    counts = Counter(finding.status for finding in findings)
    warnings = "warning" if counts[Status.WARNING] == 1 else "warnings"
    words = {Status.OK: "ok", Status.WARNING: warnings, Status.FAILED: "failed", Status.UNKNOWN: "unknown"}
    return ", ".join(f"{counts[status]} {word}" for status, word in words.items())


def to_json(findings: Sequence[Finding], **about: Any) -> dict[str, Any]:
    counts = Counter(finding.status.value for finding in findings)
    return {
        **about,
        "counts": {status.value: counts[status.value] for status in Status},
        "findings": [finding.to_json() for finding in findings],
    }
