"""`skypod gateway-manifest`: what Kubernetes needs to run the gateway of an environment."""

import boto3
import click
import yaml

from cdk_app import images, options, outputs, settings
from stacks.manifests import gateway


@click.command("gateway-manifest")
@options.environment
@click.option("--model-id", default="maze", show_default=True, help="The RayService's name for the base.")
@click.option("--public-name", default="maze", show_default=True, help="The model that clients ask for.")
@click.option(
    "--mixes-safely",
    is_flag=True,
    help="The engine may have base and adapter requests in one batch: two gateways, no turns.",
)
def command(environment: str, model_id: str, public_name: str, mixes_safely: bool) -> None:
    """Print the gateway's Kubernetes objects, its image pinned to the digest of the deployed sources.

    Its two secrets are made first, by hand: keys of clients and the certificate of its name.

    \b
    Example:
      skypod gateway-manifest | kubectl apply -f -
    """
    chosen = settings.load(environment)
    session = boto3.Session(region_name=chosen.region)
    deployed = outputs.read(session, chosen)
    objects = gateway.build(
        deployed,
        image=images.require(session, deployed, "serve"),
        model_id=model_id,
        public_name=public_name,
        mixes_safely=mixes_safely,
    )
    click.echo(yaml.safe_dump_all(objects, sort_keys=False), nl=False)
