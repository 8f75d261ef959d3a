import json
from pathlib import Path

import boto3
import numpy as np
import pytest
from moto import mock_aws

import tests.serving.moto_models  # noqa: F401
from serving import tensors
from serving.base import Base
from tests.serving.artifacts import CONFIG, language_weights, write_export


@pytest.fixture
def base_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "base"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    weights = {"lm_head.weight": tensors.from_array(np.ones((32, 8), np.float32))}
    (directory / "model.safetensors").write_bytes(tensors.serialize(weights))
    return directory


@pytest.fixture
def base(base_dir: Path) -> Base:
    return Base.read(base_dir)


@pytest.fixture
def export(tmp_path: Path, base: Base) -> Path:
    return write_export(tmp_path / "export", language_weights(base))


@pytest.fixture
def s3(monkeypatch):
    """A client of the process's mocked AWS, with a bucket `artifacts`."""
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="artifacts")
        yield client
