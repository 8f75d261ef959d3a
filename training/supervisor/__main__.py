"""The supervisor's own process: `python -m training.supervisor RUN_DIR --recipe FILE ...`.

Everything it and the drivers say goes to stdout, one event a line, for whoever follows its pod's log. Exit
status: 0 the run has finished, 10 it was given up or stopped, 2 a person has to correct something, 5 another
supervisor has the run. With any other, and without one, the Kubernetes Job starts it again.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from training import lineage, prepare, recipe
from training.errors import ConfigError, DataError, SkypodError
from training.events import MARK
from training.jobs import Endpoint
from training.locks import locked
from training.recipe import Recipe
from training.run import SHARED_VARIABLE
from training.supervisor.cluster import RayCluster
from training.supervisor.supervise import supervise

GIVEN_UP = 10
TERMINATED = 128 + signal.SIGTERM
PREPARING_S = 1800.0


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--recipe", "recipe_file", required=True, type=click.Path(path_type=Path))
@click.option("--dashboard", required=True, help="Address of the Ray dashboard.")
@click.option("--token-file", type=click.Path(path_type=Path), help="Holds the Ray cluster's token.")
@click.option("--image", default="", help="What the run's processes run in, for its manifest.")
@click.option("--entrypoint", default="python -m training.run", show_default=True)
@click.option("--resume", default="", help="A name for the request of a person to go on with the run.")
@click.option("--usd-per-hour", type=float, default=None, help="Of the cluster, for recovery.max_usd.")
def main(
    run_dir: Path,
    recipe_file: Path,
    dashboard: str,
    token_file: Path | None,
    image: str,
    entrypoint: str,
    resume: str,
    usd_per_hour: float | None,
) -> None:
    """Prepare RUN_DIR where it does not exist, then see the run through."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    chosen = recipe.load(recipe_file)
    if not run_dir.exists():
        if resume:
            raise ConfigError(f"there is no run {run_dir.name!r} to resume", "submit it first")
        _prepare(chosen, run_dir, recipe_file, image)

    def endpoint() -> Endpoint:
        # Read each time: a new head has a new token where its Secret was made anew.
        return Endpoint(dashboard, token_file.read_text().strip() if token_file else "")

    cluster = RayCluster(endpoint, entrypoint, run_dir)
    verdict = supervise(run_dir, cluster, chosen, resume=resume, usd_per_hour=usd_per_hour, show=_show)
    if not verdict.finished:
        _refuse(verdict.problem, verdict.remedy)
        sys.exit(GIVEN_UP)


def _prepare(chosen: Recipe, run_dir: Path, recipe_file: Path, image: str) -> None:
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    # A second supervisor of a run that is being prepared would remove what the first has written so far.
    with locked(run_dir.parent, PREPARING_S):
        if not (run_dir / lineage.MANIFEST).exists():
            base = Path(os.environ[SHARED_VARIABLE]) / chosen.policy.base_model
            prepare.prepare(chosen, run_dir, base_dir=base, image=image, source=recipe_file)


def _show(event: dict[str, Any]) -> None:
    print(f"{MARK}{json.dumps(event)}", flush=True)


def _refuse(problem: str, remedy: str) -> None:
    _show({"event": "refused", "message": problem, "remedy": remedy})


def run() -> None:
    """The command with the exit status of each error; they are told as events, too."""
    try:
        main(standalone_mode=False)
    except SkypodError as error:
        _refuse(error.problem, error.remedy)
        # A Job must not repeat what a person has to correct.
        final = isinstance(error, ConfigError | DataError)
        sys.exit(ConfigError.exit_code if final else error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(ConfigError.exit_code)


if __name__ == "__main__":
    run()
