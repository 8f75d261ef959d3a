"""What every emulated control plane shares: dispatch, checks, identifiers, lookups of other resources."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

from botocore import xform_name
from ministack.core.responses import get_account_id, get_region
from ministack.services import ec2, iam

from rehearsal.aws import models
from rehearsal.aws.models import ApiError


class Service:
    """One control plane. Methods named like operations in snake case, `(params) -> answer`, implement it."""

    model: str
    """botocore's name of the service."""

    signing: str
    """Service name in a request's credential scope."""

    def implements(self, name: str) -> bool:
        """Whether this class, rather than ministack, answers the operation."""
        return hasattr(self, xform_name(name))

    def call(self, name: str, params: dict[str, Any]) -> dict[str, Any]:
        """Check the input against the model and run the operation. Raises ApiError."""
        models.check(self.model, name, params)
        handler: Callable[[dict[str, Any]], dict[str, Any]] | None = getattr(self, xform_name(name), None)
        if handler is None:
            raise ApiError("NotImplemented", f"The emulated AWS does not implement {self.model}:{name}", 501)
        return handler(params) or {}


def arn(service: str, resource: str) -> str:
    """An ARN in the request's account and region."""
    return f"arn:aws:{service}:{get_region()}:{get_account_id()}:{resource}"


def identifier(prefix: str, digits: int = 17) -> str:
    """A fresh identifier like `fs-0123456789abcdef0`."""
    return prefix + secrets.token_hex(digits)[:digits]


def require_subnets(subnets: Iterable[str], code: str = "ValidationException") -> None:
    """Refuse subnets that do not exist in this region."""
    for subnet in subnets:
        if subnet not in ec2._subnets:
            raise ApiError(code, f"The subnet ID '{subnet}' does not exist")


def require_security_groups(groups: Iterable[str], code: str = "ValidationException") -> None:
    """Refuse security groups that do not exist in this region."""
    for group in groups:
        if group not in ec2._security_groups:
            raise ApiError(code, f"The security group '{group}' does not exist")


def require_role(role_arn: str, code: str = "ValidationException") -> None:
    """Refuse a role that does not exist in this account."""
    name = role_arn.rpartition("/")[2]
    if name not in iam._roles:
        raise ApiError(code, f"The role {role_arn} does not exist")


def wait_until(done: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll a resource until it has settled, as a CloudFormation resource handler does."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise ApiError("NotStabilized", f"{what} did not stabilize within {timeout_s:g} s", 500)
        time.sleep(0.02)
