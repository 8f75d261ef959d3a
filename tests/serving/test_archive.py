import gzip
import io
import os
import tarfile
import time

import pytest

from serving import archive, store
from serving.adapter import package
from serving.manifest import CONFIG, MANIFEST, WEIGHTS
from training.errors import DataError

KEY = "adapters/{}.tar.gz"


@pytest.fixture
def packaged(export, base_dir, tmp_path):
    def make(run: str):
        adapter = package(export, tmp_path / run, base_dir=base_dir, run_id=run, evaluation_digest="e")
        return tmp_path / run / adapter.name

    return make


def test_an_archive_holds_what_the_engine_reads_and_nothing_of_who_made_it(packaged, s3):
    folder = packaged("one")
    assert archive.upload(folder, s3, "artifacts", "adapters/") == f"s3://artifacts/{KEY.format(folder.name)}"
    content = s3.get_object(Bucket="artifacts", Key=KEY.format(folder.name))["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
        members = tar.getmembers()
        assert [member.name for member in members] == [CONFIG, WEIGHTS]
        assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in members} == {(0, 0, 0, "", 0o644)}
        assert tar.extractfile(WEIGHTS).read() == (folder / WEIGHTS).read_bytes()
    assert content[4:8] == bytes(4)  # gzip's own time


def test_equal_adapters_make_equal_archives_whoever_made_them_and_when(packaged, s3):
    first, second = packaged("one"), packaged("two")
    assert first.name == second.name
    assert (first / MANIFEST).read_bytes() != (second / MANIFEST).read_bytes()
    os.utime(second / WEIGHTS, (time.time() + 100,) * 2)
    archive.upload(first, s3, "artifacts", "adapters")
    archive.upload(second, s3, "artifacts", "adapters")
    assert len(s3.list_objects_v2(Bucket="artifacts")["Contents"]) == 1


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", gzip.compress(b"other")], ids=["none", "cut", "other"])
def test_what_lies_there_is_never_overwritten(packaged, s3, content):
    folder = packaged("one")
    key = KEY.format(folder.name)
    s3.put_object(Bucket="artifacts", Key=key, Body=content)
    with pytest.raises(DataError, match="exists with other content"):
        archive.upload(folder, s3, "artifacts", "adapters")
    assert s3.get_object(Bucket="artifacts", Key=key)["Body"].read() == content


def test_the_same_in_other_bytes_is_the_same(packaged, s3):
    folder = packaged("one")
    packed = archive.pack({name: (folder / name).read_bytes() for name in (CONFIG, WEIGHTS)})
    other = gzip.compress(gzip.decompress(packed), compresslevel=9, mtime=7)
    assert other != packed
    s3.put_object(Bucket="artifacts", Key=KEY.format(folder.name), Body=other)
    archive.upload(folder, s3, "artifacts", "adapters")


def test_an_archive_is_no_adapter_of_the_listing(packaged, s3):
    folder = packaged("one")
    archive.upload(folder, s3, "artifacts", "adapters")
    assert store.names(s3, "artifacts", "adapters") == []
    store.upload(folder, s3, "artifacts", "adapters")
    assert store.names(s3, "artifacts", "adapters") == [folder.name]
