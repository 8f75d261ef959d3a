"""Options that several commands take alike."""

from pathlib import Path

import click

from cdk_app import settings

environment = click.option(
    "--environment",
    default=settings.DEFAULT,
    show_default=True,
    help="Name in environments/, or a settings file.",
)
runs = click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Run folders."
)
shared = click.option(
    "--shared",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".rehearsal/shared"),
    envvar="SKYPOD_SHARED",
    show_default=True,
    help="Where the base model of the recipe lies.",
)
