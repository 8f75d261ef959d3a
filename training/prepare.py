"""A run folder, ready to be submitted: resolved recipe, tasks of every split, and the manifest."""

import shutil
from pathlib import Path

from training import lineage, recipe, splits
from training.audits import ancestry, contamination, reward
from training.errors import ConfigError, DataError
from training.evaluate import ceiling
from training.files import tree_digest
from training.gate.thresholds import check_attainable
from training.recipe import Recipe


def prepare(
    chosen: Recipe, run_dir: Path, *, base_dir: Path, image: str, source: Path | None = None
) -> dict[str, float]:
    """Write the run folder; returns the horizon ceiling of each split (share of tasks solvable in time).

    Raises ConfigError when the run exists already or its gate could never be passed, DataError when there is
    no base model or an audit refuses the run (see training.audits); then nothing is left behind.
    """
    if run_dir.exists():
        raise ConfigError(
            f"run {run_dir.name!r} exists already: {run_dir}",
            "choose another run id, or remove that folder",
        )
    if not (base_dir / "config.json").is_file():
        raise DataError(f"there is no base model in {base_dir}", "make or download it first")
    building = run_dir.with_name(f".{run_dir.name}.preparing")
    shutil.rmtree(building, ignore_errors=True)
    try:
        ceilings = _fill(chosen, building, base_dir, image, source)
        building.rename(run_dir)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    lineage.update(run_dir, run=run_dir.name)
    return ceilings


def _fill(chosen: Recipe, folder: Path, base_dir: Path, image: str, source: Path | None) -> dict[str, float]:
    environment, max_turns = chosen.environment.make(), chosen.environment.max_turns
    built = splits.of_recipe(chosen)
    audits = {
        "contamination": contamination.audit(dict(built), ancestry.read(base_dir)),
        "reward": reward.of_recipe(chosen),
    }
    for audit in audits.values():
        audit.require()
    ancestry.copy(base_dir, folder / contamination.FOLDER)
    digests, ceilings = {}, {}
    for name, rows in built:
        digests[name] = splits.write(folder / "data" / f"{name}.jsonl", rows)
        ceilings[name] = ceiling(environment, map(splits.row_task, rows), max_turns)
        if name == chosen.gate.split:
            check_attainable(chosen.gate, ceilings[name], len(rows))
    recipe.write_resolved(chosen, folder / "recipe.json")
    if source is not None:
        shutil.copyfile(source, folder / "recipe.toml")
    lineage.create(folder, chosen, base_dir=base_dir, image=image, data_digests=digests)
    reports = {name: audit.to_json() for name, audit in audits.items()}
    lineage.update(
        folder, ceilings=ceilings, audits=reports, ancestry=tree_digest(folder / contamination.FOLDER)
    )
    return ceilings
