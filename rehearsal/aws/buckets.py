"""What ministack's CloudFormation leaves out of S3 buckets: tags, and the refusal to delete a full one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ministack.services import s3

from rehearsal.aws import cloudformation
from rehearsal.aws.models import ApiError


def register() -> None:
    """Put the repairs around AWS::S3::Bucket."""
    cloudformation.wrap("AWS::S3::Bucket", "create", _with_tags(1))
    cloudformation.wrap("AWS::S3::Bucket", "update", _with_tags(2))
    cloudformation.wrap("AWS::S3::Bucket", "delete", _unless_used)


def _with_tags(position: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrapper(handler: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> tuple[str, dict[str, Any]]:
            bucket, attributes = handler(*args)
            s3._bucket_tags[bucket] = cloudformation.tag_map(args[position])
            return bucket, attributes

        return run

    return wrapper


def _unless_used(delete: Callable[..., Any]) -> Callable[..., Any]:
    def run(bucket: str, properties: dict[str, Any]) -> None:
        versions = [key for key in s3._object_versions if key[0] == bucket and s3._object_versions[key]]
        if s3._buckets.get(bucket, {}).get("objects") or versions:
            raise ApiError("BucketNotEmpty", f"The bucket you tried to delete is not empty: {bucket}", 409)
        delete(bucket, properties)

    return run
