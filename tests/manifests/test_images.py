"""The image sources: Dockerfiles by the rules that matter, locks for the machine that they are for."""

import json
import re

import boto3
import pytest
from moto import mock_aws

from cdk_app import images
from cdk_app.doctor.images import read
from stacks.outputs import Outputs
from tests.manifests.conftest import ROOT
from training.environments import visgym
from training.errors import SubstrateError

IMAGES = ("train", "serve")
SECRETS = re.compile(r"(?i)(token|secret|password|passwd|api_?key|access_?key)\w*\s*=")


def _instructions(image: str) -> list[tuple[str, str]]:
    """(instruction, its text) with continued lines joined and comments left out."""
    text = (ROOT / "docker" / image / "Dockerfile").read_text()
    text = re.sub(r"(?m)^\s*#.*\n", "", text).replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2]) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("image", IMAGES)
def test_dockerfiles_keep_the_rules(image):
    instructions = _instructions(image)
    bases = [text for name, text in instructions if name == "FROM"]
    for base in bases:
        assert re.search(r":[\w.-]*\d+\.\d+\.\d+[\w.-]*$|@sha256:[0-9a-f]{64}$", base), (
            f"{base} is not pinned"
        )
    assert not any(name == "ADD" for name, _ in instructions), "ADD fetches and unpacks what nobody checked"
    assert [text for name, text in instructions if name == "USER"], "the user is not stated"
    for name, text in instructions:
        assert not SECRETS.search(text), f"{name} {text}"
        assert "latest" not in text
        assert not (name == "RUN" and "curl" in text and "| sh" in text)
        if name == "RUN" and "apt-get install" in text:
            assert "--no-install-recommends" in text
            assert "rm -rf /var/lib/apt/lists/*" in text
        if name == "RUN" and "pip install" in text:
            assert "--no-deps" in text, "what the lock does not name would come too"


@pytest.mark.parametrize("image", IMAGES)
def test_locks_pin_everything_and_name_no_index(image):
    lines = (ROOT / "docker" / image / "requirements.lock").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert len(pins) > 200
    assert "://" not in "\n".join(lines)
    # Torch's CUDA 13, once.
    assert any(name.startswith("nvidia-") and name.endswith("-cu13") for name in pins)
    assert not any(name.endswith("-cu12") for name in pins if name.startswith("nixl"))
    # Nothing that the image asks for itself is locked to something else.
    for package, versions in read(image).pins.items():
        assert len(versions) == 1, (package, versions)


def test_wheels_are_for_the_python_of_the_image_and_for_the_locked_versions():
    wheels = [
        line.rpartition("/")[2].replace("%2B", "+").split("-")
        for line in (ROOT / "docker" / "train" / "wheels.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    pins = read("train").pins
    assert read("train").python == "3.12"
    for name, version, python, abi, platform in wheels:
        (pinned,) = pins[name.replace("_", "-")]
        assert version.partition("+")[0] == pinned
        assert python == "cp312" or abi == "abi3"
        assert platform.endswith("x86_64.whl")


def test_both_images_run_one_engine():
    train, serve = read("train"), read("serve")
    differ = {
        name for name in train.pins.keys() & serve.pins.keys() if train.version(name) != serve.version(name)
    }
    assert differ == {"ray"}


def test_the_train_image_has_the_mazes_of_the_commit_that_the_code_names():
    arguments = [text for name, text in _instructions("train") if name == "ARG"]
    assert arguments == [f"VISGYM_COMMIT={visgym.COMMIT}"]


@mock_aws
def test_manifests_get_the_digest_that_was_pushed_for_the_deployed_sources(outputs: Outputs):
    session = boto3.Session("a", "b", region_name=outputs.region)
    client = session.client("ecr")
    with pytest.raises(SubstrateError, match=r"repository skypod-paper-?\S* .* gone") as gone:
        images.require(session, outputs, "train")
    assert "aws ecr create-repository" in gone.value.remedy
    client.create_repository(repositoryName=outputs.train_repository_uri.partition("/")[2])
    with pytest.raises(SubstrateError, match="was not built") as missing:
        images.require(session, outputs, "train")
    assert "skypod images --build" in missing.value.remedy
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {"digest": "sha256:0"},
        }
    )
    pushed = client.put_image(
        repositoryName=outputs.train_repository_uri.partition("/")[2],
        imageManifest=manifest,
        imageTag=outputs.train_image_tag,
    )["image"]["imageId"]["imageDigest"]
    assert images.require(session, outputs, "train") == f"{outputs.train_repository_uri}@{pushed}"
