"""Copies of a run's checkpoints in S3, for a run that goes on where its file system is not.

On AWS the file system exports whatever runs write; these copies need none. They have the folders of the
store; the file that names all others goes last, so that a copy that was interrupted is passed over.
"""

import shutil
from typing import Any, Protocol

from training.checkpoints.store import META, Checkpoint, Store
from training.errors import DataError


class S3(Protocol):
    """What is used of a boto3 client."""

    def upload_file(self, Filename: str, Bucket: str, Key: str) -> None: ...
    def download_file(self, Bucket: str, Key: str, Filename: str) -> None: ...
    def get_paginator(self, operation_name: str) -> Any: ...


def push(checkpoint: Checkpoint, s3: S3, bucket: str, prefix: str) -> str:
    """Copy a checkpoint to s3://bucket/prefix/<its folder>; returns that address. Again is the same."""
    where = f"{prefix.strip('/')}/{checkpoint.folder.name}".lstrip("/")
    files = [path for path in checkpoint.folder.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: (path.name == META, path)):
        s3.upload_file(str(path), bucket, f"{where}/{path.relative_to(checkpoint.folder).as_posix()}")
    return f"s3://{bucket}/{where}"


def pull(store: Store, s3: S3, bucket: str, prefix: str) -> Checkpoint:
    """Fetch the newest whole copy into the store, unless it has that step or a later one already.

    Raises DataError when there is none, or when it is of another run or base; then nothing has changed.
    """
    where = f"s3://{bucket}/{prefix.strip('/')}".rstrip("/")
    here = store.newest().checkpoint
    faults: list[str] = []
    for step, keys in sorted(_copies(s3, bucket, prefix).items(), reverse=True):
        if here is not None and here.step >= step:
            return here
        arriving = store.arriving(step)
        try:
            for name, key in keys.items():
                (arriving / name).parent.mkdir(parents=True, exist_ok=True)
                s3.download_file(bucket, key, str(arriving / name))
            found = store.adopt(arriving, step, f"{where}/{store.path(step).name}")
        finally:
            shutil.rmtree(arriving, ignore_errors=True)
        if found.checkpoint is not None:
            return found.checkpoint
        faults += found.faults
    if here is not None:
        return here
    said = f": {faults[0]}" if faults else ""
    raise DataError(f"{where} holds no whole checkpoint{said}", "copy one there first")


def _copies(s3: S3, bucket: str, prefix: str) -> dict[int, dict[str, str]]:
    """{step: {file: key}} of every folder that has its META."""
    root = f"{prefix.strip('/')}/".lstrip("/")
    copies: dict[int, dict[str, str]] = {}
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=root):
        for entry in page.get("Contents", []):
            folder, _, name = entry["Key"].removeprefix(root).partition("/")
            step = Store.step_of(folder)
            if step is not None and _is_plain(name):
                copies.setdefault(step, {})[name] = entry["Key"]
    return {step: files for step, files in copies.items() if META in files}


def _is_plain(name: str) -> bool:
    """Of a file within the folder: nothing absolute, nothing above, and not S3's mark of an empty folder."""
    return not {"", ".", ".."} & set(name.split("/"))
