"""What stands for the images in a rehearsal: a description of the laptop's environment, in the emulated ECR.

Nothing is built or pulled, and the kubelet's stand-in runs every image as the training environment. The
description has a digest like any image: manifests are pinned as on AWS, and other libraries make another one.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import boto3

from stacks.names import IMAGES
from stacks.outputs import Outputs

MEDIA_TYPE = "application/vnd.oci.image.manifest.v1+json"
_EMPTY = b"{}"


def register(session: boto3.Session, deployed: Outputs, train_python: Path) -> None:
    """Push the description under the tags of the deployed sources, where a build on AWS pushes images."""
    ecr = session.client("ecr")
    for image in IMAGES:
        ecr.put_image(
            repositoryName=getattr(deployed, f"{image}_repository_uri").partition("/")[2],
            imageTag=getattr(deployed, f"{image}_image_tag"),
            imageManifest=json.dumps(describe(image, train_python), sort_keys=True),
            imageManifestMediaType=MEDIA_TYPE,
        )


def describe(image: str, train_python: Path) -> dict[str, Any]:
    """An OCI manifest without layers; its annotations name the environment by what is installed in it."""
    installed = sorted(
        path.name for path in train_python.parent.parent.glob("lib/*/site-packages/*.dist-info")
    )
    return {
        "schemaVersion": 2,
        "mediaType": MEDIA_TYPE,
        "artifactType": "application/vnd.skypod.laptop-environment",
        "config": {
            "mediaType": "application/vnd.oci.empty.v1+json",
            "digest": f"sha256:{sha256(_EMPTY).hexdigest()}",
            "size": len(_EMPTY),
        },
        "layers": [],
        "annotations": {
            "skypod.image": image,
            "skypod.packages": str(len(installed)),
            "skypod.packages.digest": f"sha256:{sha256('\n'.join(installed).encode()).hexdigest()}",
        },
    }
