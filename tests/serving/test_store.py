from pathlib import Path

import pytest

from serving import store
from serving.adapter import package
from training.errors import DataError, SubstrateError


@pytest.fixture
def directory(export: Path, base_dir: Path, tmp_path: Path) -> Path:
    adapter = package(export, tmp_path / "out", base_dir=base_dir, run_id="r", evaluation_digest="e")
    return tmp_path / "out" / adapter.name


def test_an_adapter_comes_back_as_it_went(s3, directory, tmp_path):
    uri = store.upload(directory, s3, "artifacts", "/adapters/")
    assert uri == f"s3://artifacts/adapters/{directory.name}"
    assert store.names(s3, "artifacts", "adapters") == [directory.name]
    back = store.download(directory.name, tmp_path / "fetched", s3, "artifacts", "adapters")
    assert {path.name: path.read_bytes() for path in back.iterdir()} == {
        path.name: path.read_bytes() for path in directory.iterdir()
    }
    assert store.download(directory.name, tmp_path / "fetched", s3, "artifacts", "adapters") == back


def test_an_interrupted_upload_is_invisible_and_can_be_completed(s3, directory, tmp_path):
    key = f"adapters/{directory.name}/adapter_config.json"
    s3.put_object(Bucket="artifacts", Key=key, Body=(directory / "adapter_config.json").read_bytes())
    assert store.names(s3, "artifacts", "adapters") == []
    with pytest.raises(DataError, match=r"adapter.json does not exist"):
        store.download(directory.name, tmp_path / "fetched", s3, "artifacts", "adapters")
    store.upload(directory, s3, "artifacts", "adapters")
    assert store.upload(directory, s3, "artifacts", "adapters").endswith(directory.name)
    assert store.names(s3, "artifacts", "adapters") == [directory.name]


def test_the_adapter_of_two_runs_is_stored_once_with_the_lineage_of_the_first(
    s3, directory, export, base_dir, tmp_path
):
    store.upload(directory, s3, "artifacts", "adapters")
    package(export, tmp_path / "again", base_dir=base_dir, run_id="another", evaluation_digest="f")
    assert store.upload(tmp_path / "again" / directory.name, s3, "artifacts", "adapters")
    back = store.download(directory.name, tmp_path / "fetched", s3, "artifacts", "adapters")
    assert (back / "adapter.json").read_bytes() == (directory / "adapter.json").read_bytes()


def test_other_content_under_the_name_is_never_overwritten(s3, directory):
    key = f"adapters/{directory.name}/adapter_model.safetensors"
    s3.put_object(Bucket="artifacts", Key=key, Body=b"someone else's")
    with pytest.raises(DataError, match="exists with other content"):
        store.upload(directory, s3, "artifacts", "adapters")
    assert s3.get_object(Bucket="artifacts", Key=key)["Body"].read() == b"someone else's"
    assert store.names(s3, "artifacts", "adapters") == []


@pytest.mark.parametrize(
    ("name", "reason"), [("adapter_model.safetensors", "has digest"), ("adapter.json", "not JSON")]
)
def test_a_damaged_copy_never_appears_on_disk(name, reason, s3, directory, tmp_path):
    store.upload(directory, s3, "artifacts", "adapters")
    s3.put_object(Bucket="artifacts", Key=f"adapters/{directory.name}/{name}", Body=b"damaged")
    with pytest.raises(DataError, match=reason):
        store.download(directory.name, tmp_path / "fetched", s3, "artifacts", "adapters")
    assert not (tmp_path / "fetched").exists()


def test_a_missing_bucket_is_named(s3, directory):
    with pytest.raises(SubstrateError, match="s3://elsewhere/"):
        store.upload(directory, s3, "elsewhere", "adapters")
