"""The images of the deployed sources, by digest; `skypod images` lists them and builds missing ones."""

import json

import boto3
import click

from cdk_app import options, outputs, settings
from stacks.names import IMAGES
from stacks.outputs import Outputs
from training.errors import SubstrateError


def find(session: boto3.Session, deployed: Outputs, image: str) -> str | None:
    """`<repository>@sha256:...` of what was built from the deployed sources; None when nothing was.

    Raises SubstrateError when the repository is gone.
    """
    client = session.client("ecr", region_name=deployed.region)
    uri, tag = getattr(deployed, f"{image}_repository_uri"), getattr(deployed, f"{image}_image_tag")
    name = uri.partition("/")[2]
    try:
        found = client.describe_images(repositoryName=name, imageIds=[{"imageTag": tag}])["imageDetails"]
    except client.exceptions.ImageNotFoundException:
        return None
    except client.exceptions.RepositoryNotFoundException:
        raise SubstrateError(
            f"image repository {name} was deployed to {deployed.region} and is gone",
            "a deploy does not bring it back: `aws ecr create-repository --repository-name "
            f"{name} --image-tag-mutability IMMUTABLE --region {deployed.region}`, then "
            "`skypod images --build`",
        ) from None
    return f"{uri}@{found[0]['imageDigest']}" if found else None


def require(session: boto3.Session, deployed: Outputs, image: str) -> str:
    """The same for a manifest. Raises SubstrateError with the way to build it when it isn't there."""
    found = find(session, deployed, image)
    if found is None:
        raise SubstrateError(
            f"the {image} image of the deployed sources was not built: no tag "
            f"{getattr(deployed, f'{image}_image_tag')} in {getattr(deployed, f'{image}_repository_uri')}",
            "start its build with `skypod images --build` and wait until `skypod images` lists it",
        )
    return found


@click.command()
@options.environment
@click.option("--build", is_flag=True, help="Start the builds of those that are missing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def images(ctx: click.Context, environment: str, build: bool, as_json: bool) -> None:
    """List the images of the deployed sources by digest, as manifests name them.

    Exit status: 0 all are built, 1 some are not (with --build: their builds were started).

    \b
    Examples:
      skypod images
      skypod images --environment production --build
    """
    chosen = settings.load(environment)
    session = boto3.Session(region_name=chosen.region)
    deployed = outputs.read(session, chosen)
    found = {image: find(session, deployed, image) for image in IMAGES}
    missing = [image for image, uri in found.items() if uri is None]
    started = {}
    if build:
        codebuild = session.client("codebuild")
        for image in missing:
            project = getattr(deployed, f"{image}_build_project")
            started[image] = codebuild.start_build(projectName=project)["build"]["id"]
    if as_json:
        click.echo(json.dumps({"images": found, "builds": started}))
    else:
        for image, uri in found.items():
            click.echo(
                f"{image:6} {uri or 'not built'}{f', build {started[image]}' if image in started else ''}"
            )
    ctx.exit(1 if missing else 0)
