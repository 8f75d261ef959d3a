"""Custom::BucketObjects: puts small objects into a bucket, and empties the bucket before it is deleted.

Properties: Bucket, Objects (JSON: key -> text), EmptyOnDelete ("true" or "false").
"""

import json
from typing import Any

import boto3
from botocore.exceptions import ClientError

from .reply import Done, answer


def handler(event: dict[str, Any], context: Any) -> None:
    answer(event, context, _work)


def _work(event: dict[str, Any], context: Any) -> Done:
    properties = event["ResourceProperties"]
    bucket = properties["Bucket"]
    objects: dict[str, str] = json.loads(properties["Objects"])
    client = boto3.client("s3")
    if event["RequestType"] == "Delete":
        if properties["EmptyOnDelete"] == "true":
            _empty(client, bucket)
        return Done(event["PhysicalResourceId"])
    for key, text in objects.items():
        client.put_object(Bucket=bucket, Key=key, Body=text.encode())
    old = event.get("OldResourceProperties", {})
    if old.get("Bucket") == bucket:
        for key in set(json.loads(old["Objects"])) - set(objects):
            client.delete_object(Bucket=bucket, Key=key)
    return Done(f"{bucket}/objects")


def _empty(client: Any, bucket: str) -> None:
    """Delete every version of every object; a bucket that is gone is empty."""
    try:
        for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket):
            found = [
                {"Key": version["Key"], "VersionId": version["VersionId"]}
                for kind in ("Versions", "DeleteMarkers")
                for version in page.get(kind, [])
            ]
            if not found:
                continue
            failed = client.delete_objects(Bucket=bucket, Delete={"Objects": found, "Quiet": True})
            if failed.get("Errors"):
                first = failed["Errors"][0]
                raise RuntimeError(
                    f"{len(failed['Errors'])} objects of {bucket} cannot be deleted; first: "
                    f"{first['Key']}: {first['Code']}"
                )
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchBucket":
            raise
