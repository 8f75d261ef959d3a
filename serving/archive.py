"""A packaged adapter as one archive beside its folder in S3, which is how SageMaker's endpoints fetch it."""

import gzip
import io
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serving import manifest, store
from serving.manifest import CONFIG, MAX_WEIGHTS_BYTES, WEIGHTS
from training.errors import DataError


def pack(contents: Mapping[str, bytes]) -> bytes:
    """Weights and options as a tar.gz; nothing in it says who made it, or when.

    The manifest stays out: two runs that made the same adapter differ in it. Weights hardly compress.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in (CONFIG, WEIGHTS):
            entry = tarfile.TarInfo(name)
            entry.size = len(contents[name])
            archive.addfile(entry, io.BytesIO(contents[name]))
    return gzip.compress(packed.getvalue(), compresslevel=0, mtime=0)


def upload(directory: Path, s3: Any, bucket: str, prefix: str) -> str:
    """Put a packaged adapter at s3://bucket/prefix/<name>.tar.gz, once, and return that address.

    Raises DataError if something else lies there, SubstrateError if S3 cannot be reached or refuses.
    """
    adapter, contents = manifest.read_folder(directory, MAX_WEIGHTS_BYTES)
    packed, key = pack(contents), f"{prefix.strip('/')}/{adapter.name}.tar.gz"
    if not _same(store.put_once(s3, bucket, key, packed), packed):
        raise DataError(
            f"s3://{bucket}/{key} exists with other content; nothing was overwritten",
            "adapters are immutable: see who wrote it, and delete it if it is none of ours",
        )
    return f"s3://{bucket}/{key}"


def _same(found: bytes, packed: bytes) -> bool:
    """By what is packed: another zlib may pack it in other bytes."""
    try:
        return gzip.decompress(found) == gzip.decompress(packed)
    except (OSError, EOFError, zlib.error):
        return False
