"""python -m serving.gateway.new_key FILE NAME: makes an API key and prints it, once."""

import sys
from pathlib import Path
from typing import get_args

import click

from serving.gateway import keys
from training.errors import SkypodError


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("name")
@click.option("--may", multiple=True, default=("chat",), type=click.Choice(get_args(keys.Right)))
@click.option("--requests-per-minute", type=int, default=600)
@click.option("--concurrency", type=int, default=64)
def main(file: Path, name: str, may: tuple[str, ...], requests_per_minute: int, concurrency: int) -> None:
    """Add a key called NAME to FILE, which keeps its digest only, and print the key."""
    try:
        click.echo(
            keys.add(file, name, may=may, requests_per_minute=requests_per_minute, concurrency=concurrency)
        )
    except SkypodError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
