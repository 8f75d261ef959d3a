"""Options that several commands take alike."""

import math
from pathlib import Path

import click

from cdk_app import settings


class Seconds(click.FloatRange):
    """A time that ends, of at least so many seconds."""

    def __init__(self, least: float = 0):
        super().__init__(min=least)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{seconds} seconds do not end", param, ctx)
        return seconds


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
