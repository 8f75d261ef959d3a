"""python -m serving.gateway --config FILE"""

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

import click

from serving.gateway import server, settings
from training.errors import SkypodError


@click.command()
@click.option("--config", type=click.Path(path_type=Path), required=True, help="A TOML file of settings.")
def main(config: Path) -> None:
    """Serve until SIGTERM; exit status 1 when the end cut a request."""
    try:
        finished = asyncio.run(_until_told(config))
    except SkypodError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    # Python's own end would try the lost rest of the log again, and make the exit status 120.
    if sys.stdout:
        with suppress(OSError):
            sys.stdout.close()
    sys.exit(0 if finished else 1)


async def _until_told(config: Path) -> bool:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return await server.serve(settings.read(config), stop)


if __name__ == "__main__":
    main()
