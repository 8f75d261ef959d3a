"""A run goes on in another place from the newest whole copy in S3."""

import shutil
import threading
from pathlib import Path

import boto3
import pytest
from click.testing import CliRunner
from moto import mock_aws

from cdk_app.checkpoints import checkpoints as command
from cdk_app.command import outside
from tests.training.checkpoint_files import OWN, flip, write
from training import lease, prepare, recipe
from training.checkpoints import copies, of_run
from training.checkpoints.store import META, Identity, Store
from training.errors import DataError

BUCKET, PREFIX = "runs", "some/run-1"
SMOKE = Path(__file__).resolve().parents[2] / "recipes" / "maze-smoke.toml"


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
    with pytest.raises(DataError, match=f"^s3://{BUCKET}/{PREFIX}/step-000003 is of run run-2, not of run-1"):
        copies.pull(elsewhere, s3, BUCKET, PREFIX)
    assert elsewhere.steps() == []
    assert list(elsewhere.folder.iterdir()) == []


def test_where_there_is_none_it_is_said(elsewhere, s3):
    with pytest.raises(DataError, match="holds no whole checkpoint"):
        copies.pull(elsewhere, s3, BUCKET, PREFIX)


def test_one_older_than_all_damaged_ones_here_stays(store, elsewhere, s3):
    push(store, 3, s3)
    for step in (4, 5, 6):
        flip(write(elsewhere, step) / META)
    assert copies.pull(elsewhere, s3, BUCKET, PREFIX) == elsewhere.newest().checkpoint


@pytest.mark.parametrize("name", ["", "adapter/", "{outside}", "../../outside", "adapter//outside"])
def test_a_key_that_is_no_file_of_the_folder_is_left_out(store, elsewhere, s3, tmp_path, name):
    push(store, 3, s3)
    outside = tmp_path / "outside"
    s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}/step-000003/{name.format(outside=outside)}", Body=b"x")
    pulled = copies.pull(elsewhere, s3, BUCKET, PREFIX)
    assert files(pulled.folder) == files(store.path(3))
    assert not outside.exists()


@pytest.fixture
def run_dir(tmp_path) -> Path:
    """Of a run that has written checkpoints 1 and 2."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    folder = tmp_path / "runs" / "one"
    prepare.prepare(recipe.load(SMOKE), folder, base_dir=base, image="test", source=SMOKE)
    for step in (1, 2):
        write(of_run(folder), step)
    return folder


def call(*arguments: str | Path):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_what_was_passed_over_is_said_by_push(run_dir, s3):
    flip(of_run(run_dir).path(2) / META)
    said = call("push", run_dir, f"s3://{BUCKET}/one")
    assert said.stdout == f"s3://{BUCKET}/one/step-000001\n"
    assert "step-000002 is damaged" in said.stderr


def test_a_bucket_that_is_not_there_is_no_fault_of_ours(run_dir, s3):
    assert isinstance(call("push", run_dir, "s3://nowhere/one").exception, outside())


def test_pull_leaves_the_run_to_the_next_supervisor(run_dir, s3):
    call("push", run_dir, f"s3://{BUCKET}/one")
    shutil.rmtree(run_dir / "checkpoints")
    said = call("pull", run_dir, f"s3://{BUCKET}/one")
    assert said.output.startswith("goes on after step 2: ")
    assert lease.read(run_dir).holder == ""


def test_pull_does_not_write_beside_a_driver(run_dir, s3):
    call("push", run_dir, f"s3://{BUCKET}/one")
    shutil.rmtree(run_dir / "checkpoints")
    lease.take(run_dir, "supervisor", 1)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.05):
            lease.renew(run_dir, "supervisor", 0.0, 5)

    beating = threading.Thread(target=beat)
    beating.start()
    said = call("pull", run_dir, f"s3://{BUCKET}/one")
    ended.set()
    beating.join()
    assert "supervised already, by supervisor" in str(said.exception)
    assert not (run_dir / "checkpoints").exists()
