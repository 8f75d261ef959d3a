"""Adapters in S3: one folder per adapter, written once, never overwritten.

A server's prefix cache is keyed by an adapter's name and path, so new weights under an old name would be
served half stale. Names are content-addressed; this module keeps them so.
"""

from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from serving import manifest
from serving.manifest import CONFIG, FILES, MANIFEST, MAX_JSON_BYTES, MAX_WEIGHTS_BYTES, WEIGHTS
from training.errors import DataError, SubstrateError


def upload(directory: Path, s3: Any, bucket: str, prefix: str) -> str:
    """Copy a packaged adapter to s3://bucket/prefix/<name>/ and return that address, without a last slash.

    Uploading again, also after an interruption, completes what is missing. Of two runs that made the same
    adapter the first one's lineage stays. Raises DataError if other bytes lie under one of the names,
    SubstrateError if S3 cannot be reached or refuses. `s3` is a boto3 client.
    """
    adapter, contents = manifest.read_folder(directory, MAX_WEIGHTS_BYTES)
    folder = _folder(prefix, adapter.name)
    # The manifest goes last: a folder that has one is complete.
    for name in (WEIGHTS, CONFIG, MANIFEST):
        key = f"{folder}/{name}"
        found = put_once(s3, bucket, key, contents[name])
        same = found == contents[name]
        if name == MANIFEST and not same:
            same = manifest.parse(found, f"s3://{bucket}/{key}").digest == adapter.digest
        if not same:
            raise DataError(
                f"s3://{bucket}/{key} exists with other content; nothing was overwritten",
                "adapters are immutable: package the new weights, which gives them their own name",
            )
    return f"s3://{bucket}/{folder}"


def download(name: str, out: Path, s3: Any, bucket: str, prefix: str) -> Path:
    """Fetch an adapter into `out/<name>`, checking every digest before the folder appears.

    A folder that is there already is checked and kept. Raises DataError if the adapter is missing, incomplete
    or not what its name says.
    """
    directory = out / name
    if not directory.exists():
        folder = _folder(prefix, name)
        content = _get(s3, bucket, f"{folder}/{MANIFEST}", MAX_JSON_BYTES)
        adapter = manifest.parse(content, f"s3://{bucket}/{folder}/{MANIFEST}")
        if adapter.name != name:
            raise DataError(f"s3://{bucket}/{folder} holds the adapter {adapter.name}")
        contents = {
            WEIGHTS: _get(s3, bucket, f"{folder}/{WEIGHTS}", MAX_WEIGHTS_BYTES),
            CONFIG: _get(s3, bucket, f"{folder}/{CONFIG}", MAX_JSON_BYTES),
            MANIFEST: content,
        }
        adapter.check(contents, f"s3://{bucket}/{folder}")
        manifest.write_folder(directory, contents)
    manifest.read_folder(directory, MAX_WEIGHTS_BYTES)
    return directory


def names(s3: Any, bucket: str, prefix: str) -> list[str]:
    """Names of the complete adapters under a prefix, sorted."""
    root = _folder(prefix, "")
    found: dict[str, set[str]] = {}
    try:
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=root):
            for entry in page.get("Contents", ()):
                folder, _, name = entry["Key"].removeprefix(root).rpartition("/")
                found.setdefault(folder, set()).add(name)
    except (ClientError, BotoCoreError) as error:
        raise _unavailable(f"s3://{bucket}/{root}", error) from error
    return sorted(folder for folder, files in found.items() if files >= set(FILES))


def put_once(s3: Any, bucket: str, key: str, content: bytes) -> bytes:
    """Write an object unless there is one; what then lies there."""
    try:
        s3.put_object(Bucket=bucket, Key=key, Body=content, IfNoneMatch="*")
    except ClientError as error:
        # 412: the key exists; 409: another upload of it is under way at this moment.
        if error.response["ResponseMetadata"].get("HTTPStatusCode") not in (409, 412):
            raise _unavailable(f"s3://{bucket}/{key}", error) from error
    except BotoCoreError as error:
        raise _unavailable(f"s3://{bucket}/{key}", error) from error
    return _get(s3, bucket, key, MAX_WEIGHTS_BYTES)


def _get(s3: Any, bucket: str, key: str, max_bytes: int) -> bytes:
    try:
        answer = s3.get_object(Bucket=bucket, Key=key)
        content = answer["Body"].read(max_bytes + 1)
    except ClientError as error:
        if error.response["Error"].get("Code") in ("NoSuchKey", "404", "NoSuchBucket"):
            raise DataError(
                f"s3://{bucket}/{key} does not exist", "check the name, or upload again"
            ) from error
        raise _unavailable(f"s3://{bucket}/{key}", error) from error
    except BotoCoreError as error:
        raise _unavailable(f"s3://{bucket}/{key}", error) from error
    if len(content) > max_bytes:
        raise DataError(f"s3://{bucket}/{key} has more than the {max_bytes} bytes allowed")
    return content


def _folder(prefix: str, name: str) -> str:
    return f"{prefix.strip('/')}/{name}".lstrip("/")


def _unavailable(address: str, error: Exception) -> SubstrateError:
    return SubstrateError(f"{address}: {error}", "check the bucket, its region and your permissions")
