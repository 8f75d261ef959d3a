"""`skypod export`: an adapter, and what it takes to see its solve rate again outside any cluster."""

from pathlib import Path

import click

from cdk_app import options


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
    import json
    import tempfile

    from cdk_app import promotable
    from serving import adapter as adapters
    from serving import export as exporting
    from serving.adapter import Limits
    from serving.local import LARGEST_RANK
    from training import lineage, plays
    from training.evaluate import read_records
    from training.recorded import is_finished

    run = promotable.find(run_or_adapter, runs)
    manifest, recipe = lineage.read(run), lineage.read_recipe(run)
    base_dir, path = shared / recipe.policy.base_model, plays.records_path(run, label)
    is_finished(manifest, path)
    with tempfile.TemporaryDirectory() as scratch:
        packed = adapters.package(
            run / manifest["adapter"]["folder"],
            Path(scratch),
            base_dir=base_dir,
            run_id=manifest["run"],
            evaluation_digest=manifest["evaluations"][label]["records"],
            limits=Limits(max_rank=LARGEST_RANK),
        )
        exporting.write(
            out,
            Path(scratch) / packed.name,
            read_records(path),
            dtype=recipe.policy.dtype,
            max_tokens=recipe.rollout.max_new_tokens,
            banned=banned(
                run, json.loads((base_dir / "config.json").read_text()), recipe.rollout.text_tokens_only
            ),
        )
    click.echo(f"{packed.name} is in {out}: cd {out} && python play.py BASE_FOLDER")


def banned(run: Path, config: dict, text_tokens_only: bool) -> list[int]:
    """The tokens that the trainer's engines did not sample."""
    from training.files import read_json

    if text_tokens_only:
        allowed = set(read_json(run / "generation.json")["allowed_token_ids"])
        return [token for token in range(config["text_config"]["vocab_size"]) if token not in allowed]
    names = ("image", "video", "vision_start", "vision_end")
    return [config[f"{name}_token_id"] for name in names]
