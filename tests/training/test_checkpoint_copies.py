"""A run goes on in another place from the newest whole copy in S3."""

import shutil
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from tests.training.checkpoint_files import OWN, flip, write
from training.checkpoints import copies
from training.checkpoints.store import META, Identity, Store
from training.errors import DataError

BUCKET, PREFIX = "runs", "some/run-1"


@pytest.fixture
def s3(monkeypatch):
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        yield client


@pytest.fixture
def elsewhere(tmp_path) -> Store:
    return Store(tmp_path / "elsewhere" / "checkpoints", OWN, keep=3)


def push(store: Store, step: int, s3) -> str:
    write(store, step)
    return copies.push(store.newest().checkpoint, s3, BUCKET, PREFIX)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_newest_copy_arrives_as_it_was(store, elsewhere, s3):
    push(store, 3, s3)
    assert push(store, 4, s3) == f"s3://{BUCKET}/{PREFIX}/step-000004"
    pulled = copies.pull(elsewhere, s3, BUCKET, f"/{PREFIX}/")
    assert pulled == elsewhere.newest().checkpoint
    assert (pulled.step, elsewhere.steps(), elsewhere.newest().faults) == (4, [4], [])
    assert files(pulled.folder) == files(store.path(4))


def test_a_copy_that_was_interrupted_is_passed_over(store, elsewhere, s3):
    push(store, 3, s3)
    push(store, 4, s3)
    s3.delete_object(Bucket=BUCKET, Key=f"{PREFIX}/step-000004/{META}")
    assert copies.pull(elsewhere, s3, BUCKET, PREFIX).step == 3


def test_a_damaged_copy_is_passed_over_and_leaves_nothing(store, elsewhere, s3):
    push(store, 3, s3)
    push(store, 4, s3)
    s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}/step-000004/optimizer.safetensors", Body=b"torn")
    assert copies.pull(elsewhere, s3, BUCKET, PREFIX).step == 3
    assert elsewhere.steps() == [3]


def test_what_is_here_is_not_replaced_by_something_older(store, elsewhere, s3):
    push(store, 3, s3)
    shutil.copytree(store.folder, elsewhere.folder)
    write(elsewhere, 5)
    assert copies.pull(elsewhere, s3, BUCKET, PREFIX).step == 5


def test_a_damaged_one_here_is_replaced(store, elsewhere, s3):
    push(store, 3, s3)
    shutil.copytree(store.folder, elsewhere.folder)
    flip(elsewhere.path(3) / "optimizer.safetensors")
    assert copies.pull(elsewhere, s3, BUCKET, PREFIX).step == 3
    assert elsewhere.newest().faults == []


def test_a_copy_of_another_run_is_refused_and_changes_nothing(store, elsewhere, s3):
    other = Store(store.folder, Identity("run-2", OWN.base), keep=3)
    write(other, 3)
    copies.push(other.newest().checkpoint, s3, BUCKET, PREFIX)
    with pytest.raises(DataError, match="of run run-2, not of run-1"):
        copies.pull(elsewhere, s3, BUCKET, PREFIX)
    assert elsewhere.steps() == []
    assert list(elsewhere.folder.iterdir()) == []


def test_where_there_is_none_it_is_said(elsewhere, s3):
    with pytest.raises(DataError, match="holds no whole checkpoint"):
        copies.pull(elsewhere, s3, BUCKET, PREFIX)
