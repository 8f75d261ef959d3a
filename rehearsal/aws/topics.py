"""What ministack's CloudFormation leaves out of SNS topics: the key that encrypts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ministack.services import kms, sns

from rehearsal.aws import cloudformation
from rehearsal.aws.models import ApiError


def register() -> None:
    """Put the repair around AWS::SNS::Topic."""
    cloudformation.wrap("AWS::SNS::Topic", "create", _with_key(1))
    cloudformation.wrap("AWS::SNS::Topic", "update", _with_key(2))


def _with_key(position: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrapper(handler: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> tuple[str, dict[str, Any]]:
            key = args[position].get("KmsMasterKeyId", "")
            if key and key.rpartition("/")[2] not in kms._keys:
                raise ApiError("InvalidParameter", f"Invalid parameter: KmsMasterKeyId {key}")
            topic, attributes = handler(*args)
            sns._topics[topic]["attributes"]["KmsMasterKeyId"] = key
            return topic, attributes

        return run

    return wrapper
