"""`skypod checkpoints`: what a run could go on from, and copies of it in S3."""

import json
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import click

from training import lease, lineage
from training.checkpoints import copies, of_run
from training.errors import ConfigError

_run = click.argument("run_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


@click.group()
def checkpoints() -> None:
    """Check a run's checkpoints, copy the newest to S3, fetch it from there."""


@checkpoints.command()
@_run
@_as_json
def check(run_dir: Path, as_json: bool) -> None:
    """Say from which step RUN_DIR would go on, and what is damaged. Exit code 1 when there is none."""
    store = of_run(run_dir)
    found = store.newest()
    step = found.checkpoint.step if found.checkpoint else None
    if as_json:
        click.echo(json.dumps({"step": step, "steps": store.steps(), "faults": found.faults}))
    else:
        for fault in found.faults:
            click.echo(fault, err=True)
        there = f"{len(store.steps())} there" if store.steps() else "none there"
        click.echo(f"goes on after step {step} ({there})" if step else f"starts at step 1 ({there})")
    click.get_current_context().exit(0 if step else 1)


@checkpoints.command()
@_run
@click.argument("uri")
def push(run_dir: Path, uri: str) -> None:
    """Copy the newest whole checkpoint of RUN_DIR to URI (s3://bucket/prefix)."""
    bucket, prefix = _parse(uri)
    found = of_run(run_dir).newest()
    if found.checkpoint is None:
        raise ConfigError(f"{run_dir} has no whole checkpoint", "see `skypod checkpoints check`")
    for fault in found.faults:
        click.echo(fault, err=True)
    click.echo(copies.push(found.checkpoint, boto3.client("s3"), bucket, prefix))


@checkpoints.command()
@_run
@click.argument("uri")
def pull(run_dir: Path, uri: str) -> None:
    """Fetch the newest whole checkpoint below URI into RUN_DIR, unless a newer one is there.

    Refused while the run is supervised: its driver writes there, too.
    """
    bucket, prefix = _parse(uri)
    patience_s = lineage.read_recipe(run_dir).recovery.lease_patience_s
    holder = lease.name_holder()
    lease.take(run_dir, holder, patience_s)
    try:
        store = of_run(run_dir, lambda: lease.owned(run_dir, holder))
        found = copies.pull(store, boto3.client("s3"), bucket, prefix)
    finally:
        lease.release(run_dir, holder)
    click.echo(f"goes on after step {found.step}: {found.folder}")


def _parse(uri: str) -> tuple[str, str]:
    parts = urlsplit(uri)
    if parts.scheme != "s3" or not parts.netloc:
        raise ConfigError(f"{uri!r} is no place in S3", "give it as s3://bucket/prefix")
    return parts.netloc, parts.path
