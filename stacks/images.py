"""Two image repositories, and the projects that build their images inside the account.

An image's tag is the digest of its sources, and an output of the stack. `cdk_app.images` asks the repository
for the digest that was pushed under it; manifests name that.
"""

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from stacks.base import SkypodStack
from stacks.environment import Environment
from stacks.names import IMAGES, Names

_ROOT = Path(__file__).parent.parent
_DOCKER = _ROOT / "docker"
# What of our code an image holds: each package is a further source, and a build context of its name.
_PACKAGES = {"train": ("training",), "serve": ("training", "serving")}

_BUILD_SPEC = {
    "version": "0.2",
    "env": {"shell": "bash"},
    "phases": {
        "pre_build": {
            "commands": [
                "set -euo pipefail",
                'registry="${REPOSITORY_URI%%/*}"',
                'aws ecr get-login-password | docker login --username AWS --password-stdin "$registry"',
            ]
        },
        "build": {
            "commands": [
                # Tags are immutable: the same sources were built before, and need no second build.
                'if aws ecr describe-images --repository-name "${REPOSITORY_URI#*/}"'
                ' --image-ids imageTag="$IMAGE_TAG" >/dev/null 2>&1;'
                ' then echo "$IMAGE_TAG is built already"; exit 0; fi\n'
                "set -euo pipefail\n"
                # Layers of the newest image that still hold are not built again: most of an hour.
                'newest="$(aws ecr describe-images --repository-name "${REPOSITORY_URI#*/}"'
                " --query 'sort_by(imageDetails,&imagePushedAt)[-1].imageTags[0]' --output text || true)\"\n"
                "set -- --pull --build-arg BUILDKIT_INLINE_CACHE=1\n"
                'case "$newest" in ""|None) ;; *) set -- "$@" --cache-from "$REPOSITORY_URI:$newest";; esac\n'
                "for package in $PACKAGES; do\n"
                '  folder="CODEBUILD_SRC_DIR_$package"; set -- "$@" --build-context "$package=${!folder}"\n'
                "done\n"
                'DOCKER_BUILDKIT=1 docker build "$@" --tag "$REPOSITORY_URI:$IMAGE_TAG" .\n'
                'docker push "$REPOSITORY_URI:$IMAGE_TAG"\n'
                "docker inspect --format '{{index .RepoDigests 0}}' \"$REPOSITORY_URI:$IMAGE_TAG\""
            ]
        },
    },
}


class ImagesStack(SkypodStack):
    """Deploying starts no build: an image takes 20 minutes, and a failed build must not roll back a stack."""

    part = "images"
    summary = "Container repositories and the projects that build into them"

    def __init__(self, scope: Construct, environment: Environment, names: Names):
        super().__init__(scope, environment, names)
        self.repositories: dict[str, ecr.Repository] = {}
        self.projects: dict[str, codebuild.Project] = {}
        self.tags_built: dict[str, str] = {}
        for image in IMAGES:
            self._image(image)
        self.emit(
            train_repository_uri=self.repositories["train"].repository_uri,
            serve_repository_uri=self.repositories["serve"].repository_uri,
            train_build_project=self.projects["train"].project_name,
            serve_build_project=self.projects["serve"].project_name,
            train_image_tag=self.tags_built["train"],
            serve_image_tag=self.tags_built["serve"],
        )

    def _image(self, image: str) -> None:
        title = image.capitalize()
        repository = ecr.Repository(
            self,
            f"{title}Repository",
            repository_name=self.names.repository(image),
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            image_scan_on_push=True,
            lifecycle_rules=[
                ecr.LifecycleRule(
                    description="untagged layers of failed pushes",
                    tag_status=ecr.TagStatus.UNTAGGED,
                    max_image_age=cdk.Duration.days(1),
                    rule_priority=1,
                ),
                ecr.LifecycleRule(
                    description="the newest ten images",
                    max_image_count=10,
                    rule_priority=2,
                ),
            ],
            # Images are rebuilt from their sources, so they are never worth keeping.
            removal_policy=cdk.RemovalPolicy.DESTROY,
            empty_on_delete=True,
        )
        source = assets.Asset(self, f"{title}Source", path=str(_DOCKER / image))
        packages = {
            name: assets.Asset(
                self, f"{title}{name.capitalize()}", path=str(_ROOT / name), exclude=["**/__pycache__"]
            )
            for name in _PACKAGES[image]
        }
        tag = "-".join(asset.asset_hash[:16] for asset in (source, *packages.values()))
        project = codebuild.Project(
            self,
            f"{title}Build",
            project_name=self.names.image_build(image),
            description=f"Builds the {image} image and pushes it, tagged by the digest of its sources",
            source=codebuild.Source.s3(bucket=source.bucket, path=source.s3_object_key),
            secondary_sources=[
                codebuild.Source.s3(identifier=name, bucket=asset.bucket, path=asset.s3_object_key)
                for name, asset in packages.items()
            ],
            build_spec=codebuild.BuildSpec.from_object(_BUILD_SPEC),
            environment=codebuild.BuildEnvironment(
                build_image=codebuild.LinuxBuildImage.STANDARD_7_0,
                compute_type=codebuild.ComputeType.LARGE,
                privileged=True,
            ),
            environment_variables={
                "REPOSITORY_URI": codebuild.BuildEnvironmentVariable(value=repository.repository_uri),
                "IMAGE_TAG": codebuild.BuildEnvironmentVariable(value=tag),
                "PACKAGES": codebuild.BuildEnvironmentVariable(value=" ".join(packages)),
            },
            timeout=cdk.Duration.hours(2),
            logging=codebuild.LoggingOptions(
                cloud_watch=codebuild.CloudWatchLoggingOptions(
                    log_group=self.log_group(f"{title}BuildLog", self.names.log_group(f"{image}-image"))
                )
            ),
        )
        repository.grant_pull_push(project)
        repository.grant(project, "ecr:DescribeImages")
        self.repositories[image] = repository
        self.projects[image] = project
        self.tags_built[image] = tag
