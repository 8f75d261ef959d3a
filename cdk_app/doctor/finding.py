"""What a check says, and what it says when nobody could answer it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    `found` is what there is, `needed` what the settings or the recipe ask for, `remedy` the command or the
    setting that helps. A finding that is not ok always has a remedy.
    """

    area: str
    check: str
    status: Status
    found: str
    needed: str = ""
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Unknown:
    """In the place of an answer: why there is none, and what would get one."""

    reason: str
    remedy: str = "check the access and ask again"


def unknown(area: str, check: str, why: Unknown, needed: str = "") -> Finding:
    return Finding(area, check, Status.UNKNOWN, why.reason, needed, why.remedy)


def judge(
    area: str, check: str, good: bool, found: str, *, needed: str = "", remedy: str, warn: bool = False
) -> Finding:
    """Ok when `good`, else failed (or, with `warn`, a warning) with the remedy."""
    if good:
        return Finding(area, check, Status.OK, found, needed)
    return Finding(area, check, Status.WARNING if warn else Status.FAILED, found, needed, remedy)


def exit_code(findings: Iterable[Finding], *, aws_answered: bool) -> int:
    """0 nothing failed, 1 something did, 3 nothing failed but AWS could not be asked at all."""
    if any(finding.status is Status.FAILED for finding in findings):
        return 1
    return 0 if aws_answered else 3
