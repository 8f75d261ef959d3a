"""`skypod export`: an adapter, and what it takes to see its solve rate again outside any cluster."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdk_app import options
from training.errors import ConfigError, DataError

if TYPE_CHECKING:
    from training.evaluate import EvaluationRecord
    from training.lineage import Manifest
    from training.recipe import Recipe


@click.command()
@click.argument("run_or_adapter")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--label", default="final", show_default=True, help="The evaluation whose tasks are played.")
@options.runs
@options.shared
def export(run_or_adapter: str, out: Path, label: str, runs: Path, shared: Path) -> None:
    """Write the adapter of a run into the folder OUT, with tasks, rules of the game, and a script of 20 lines
    that plays them by plain transformers and PEFT.

    \b
    Examples:
      skypod export runs/maze-rehearsal-0 /tmp/maze
      cd /tmp/maze && python play.py /models/base
    """
    import tempfile

    from cdk_app import candidates, promotable
    from serving import adapter as adapters
    from serving import export as exporting
    from training import lineage

    run = promotable.find(run_or_adapter, runs)
    manifest, recipe = lineage.read(run), lineage.read_recipe(run)
    base_dir = shared / recipe.policy.base_model
    records = played(run, manifest, label)
    candidates.base(run, base_dir)
    with tempfile.TemporaryDirectory() as scratch:
        packed = adapters.package(
            run / manifest["adapter"]["folder"],
            Path(scratch),
            base_dir=base_dir,
            run_id=manifest["run"],
            evaluation_digest=manifest["evaluations"][label]["records"],
            limits=candidates.LIMITS,
        )
        exporting.write(
            out,
            Path(scratch) / packed.name,
            records,
            dtype=recipe.policy.dtype,
            max_tokens=recipe.rollout.max_new_tokens,
            banned=banned(run, base_dir, recipe),
        )
    click.echo(f"{packed.name} is in {out}: cd {out} && python play.py BASE_FOLDER")


def played(run: Path, manifest: "Manifest", label: str) -> "list[EvaluationRecord]":
    """The records of an evaluation by the adapter that lies in the run's folder now: of another's the export
    would promise what nobody has seen this one do."""
    from training import exports, plays
    from training.evaluate import read_records
    from training.recorded import is_finished

    if label not in manifest["evaluations"]:
        raise ConfigError(
            f"run {run.name!r} has no evaluation {label!r}",
            f"name one of these: {', '.join(sorted(manifest['evaluations'])) or 'it has none'}",
        )
    folder, noted = run / manifest["adapter"]["folder"], manifest["adapter"]["digest"]
    if (found := exports.digest(folder)) != noted:
        raise DataError(
            f"the adapter in {folder} is {found[:16]}, run.json names {noted[:16]}",
            "restore the folder; what was played is not what lies there",
        )
    path = plays.records_path(run, label)
    if not is_finished(manifest, path):
        raise DataError(f"{label} is not sealed as finished", "go on with its play, or restore run.json")
    records, own = read_records(path), f"adapter:{noted[:16]}"
    if others := {record.policy for record in records} - {own}:
        raise ConfigError(
            f"{label} was played by {min(others)}, not by {own}",
            "name an evaluation of the run's adapter: --label",
        )
    return records


def banned(run: Path, base_dir: Path, recipe: "Recipe") -> list[int]:
    """The tokens that the trainer's engines did not sample."""
    from cdk_app import players
    from serving.base import CONFIG, read_config
    from training.files import required

    config, source = read_config(base_dir), base_dir / CONFIG
    allowed = players.allowed_token_ids(run, recipe)
    if allowed is None:
        names = ("image", "video", "vision_start", "vision_end")
        return [required(config, int, f"{name}_token_id", source=source) for name in names]
    vocabulary = required(config, int, "text_config", "vocab_size", source=source)
    return sorted(set(range(vocabulary)) - set(allowed))
