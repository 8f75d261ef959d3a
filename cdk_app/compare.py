"""`skypod compare`: the first step at which two runs part, or that they do not."""

import json
from pathlib import Path

import click

from training import differences

_run = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("run_a", type=_run)
@click.argument("run_b", type=_run)
@click.option("--json", "as_json", is_flag=True, help="The comparison as one JSON object.")
@click.pass_context
def compare(ctx: click.Context, run_a: Path, run_b: Path, as_json: bool) -> None:
    """Compare two run folders step by step: tasks, tokens, log-probabilities, rewards, adapter.

    Exit code 0 when they are identical to the bit, 1 when they are not. An interrupted run is to equal an
    uninterrupted one of the same recipe and seed on a CPU; on GPUs the sizes of the differences count.
    """
    found = differences.compare(run_a, run_b)
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
    else:
        click.echo(found.words())
        if not found.identical:
            for line in _sizes(found.sizes):
                click.echo(f"  {line}")
    ctx.exit(0 if found.identical else 1)


def _sizes(sizes: dict[str, float]) -> list[str]:
    episodes = sizes["episodes"]
    lines = [
        f"{sizes['rows']} of {episodes} episodes with other tasks, {sizes['tokens']} with other tokens",
        f"largest difference of an episode's mean log-probability {sizes['logprobs']:.3g}, "
        f"of its reward {sizes['rewards']:.3g}",
    ]
    if "adapter" in sizes:
        lines.append(f"largest difference of a weight {sizes['adapter']:.3g}")
    return lines
