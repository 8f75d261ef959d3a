"""One recipe under several seeds: what each run came to, and what all of them say together.

A seed draws the training tasks, the adapter's first weights and every sampled token. Base policy and
evaluation splits are the same for all seeds.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from training import lineage, metrics, recorded, seal
from training.errors import ConfigError, DataError
from training.evaluate import EvaluationRecord, paired, read_records, summarize
from training.files import read_json
from training.plays import records_path
from training.recipe import Recipe, read_resolved
from training.statistics import mean_interval

FILE = "sweep.json"
LEVEL = 0.95
METHOD = "mean over seeds with Student's 95 % interval (cut to 0..1 for shares), and the worst seed"
_KEPT = ("n", "solved", "solve_rate", "low", "high", "ceiling", "format_rate", "policy")


def seeded(recipe: Recipe, seed: int) -> Recipe:
    """The recipe of one seed."""
    return recipe.model_copy(update={"seed": seed, "data": recipe.data.model_copy(update={"seed": seed})})


def digest(recipe: Recipe) -> str:
    """SHA-256 of all but seeds and recovery: what the runs of one sweep share, and what came of them."""
    plain = seeded(recipe, 0).model_dump(mode="json", exclude={"recovery"})
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def require_same(recipe: Recipe, earlier: Mapping[str, Any]) -> None:
    """ConfigError when a sweep that was begun is of another recipe."""
    if earlier["recipe_digest"] != digest(recipe):
        raise ConfigError(
            f"sweep {earlier['name']!r} was begun with another recipe than this one",
            "give this one a --name of its own",
        )


def require_own(recipe: Recipe, runs: Mapping[int, Path]) -> None:
    """ConfigError when one of the runs that are there is not of this recipe and seed."""
    for seed, run_dir in runs.items():
        path = run_dir / "recipe.json"
        if run_dir.exists() and not (path.is_file() and read_resolved(path) == seeded(recipe, seed)):
            raise ConfigError(
                f"run {run_dir.name!r} is there and is not seed {seed} of this recipe",
                "give the sweep another --name, or remove that folder",
            )


def is_finished(run_dir: Path) -> bool:
    """Whether a run came to its end, with every play of the sealed splits."""
    if not (run_dir / lineage.MANIFEST).is_file():
        return False
    manifest = lineage.read(run_dir)
    played = {play["label"] for play in manifest.get(seal.PLAYS, [])}
    return (
        "finished" in manifest
        and {seal.label(when, split) for when in ("baseline", "final") for split in seal.SEALED} <= played
    )


def collect(name: str, recipe: Recipe, runs: Mapping[int, Path]) -> dict[str, Any]:
    """Everything that the finished runs say, as plain data; the other seeds are named as missing.

    {"name", "recipe", "recipe_digest", "method", "seeds", "missing", "runs": [`outcome`...],
    "spread": {split: {"baseline" | "final" | "gain": `spread`}}}
    """
    found = [outcome(seed, run_dir) for seed, run_dir in runs.items() if is_finished(run_dir)]
    return {
        "name": name,
        "recipe": recipe.model_dump(mode="json"),
        "recipe_digest": digest(recipe),
        "method": METHOD,
        "seeds": list(runs),
        "missing": [seed for seed, run_dir in runs.items() if not is_finished(run_dir)],
        "runs": found,
        "spread": {split: _spreads([run["splits"][split] for run in found]) for split in seal.SEALED}
        if found
        else {},
    }


def outcome(seed: int, run_dir: Path) -> dict[str, Any]:
    """One finished run: sealed splits before and after, dev curve, cost where it was measured.

    Figures are taken from the records, whatever the manifest says. DataError where these were changed.
    """
    manifest = lineage.read(run_dir)
    splits = {}
    for split in seal.SEALED:
        before, after = (
            _played(run_dir, manifest, seal.label(when, split)) for when in ("baseline", "final")
        )
        pair = paired(before, after)
        splits[split] = {
            "baseline": _figures(before),
            "final": _figures(after),
            "won": pair.won,
            "lost": pair.lost,
            "p_value": pair.p_value,
        }
    cost = run_dir / "cost.json"
    return {
        "seed": seed,
        "run": run_dir.name,
        "commit": manifest["commit"],
        "attempts": len(manifest["attempts"]),
        "base": manifest["base"]["digest"],
        "dev": _dev_curve(run_dir, manifest),
        "train": [[row["step"], row["train_solve_rate"]] for row in metrics.read(run_dir / "metrics.jsonl")],
        "splits": splits,
        "cost": read_json(cost) if cost.is_file() else None,
    }


def spread(values: Sequence[float], lowest: float = 0.0, highest: float = 1.0) -> dict[str, Any]:
    """Mean, worst (smallest) and best of one figure over seeds, and the interval of the mean (see METHOD).

    `low` and `high` are None for a single seed; they are cut to lowest..highest.
    """
    low, high = mean_interval(values, LEVEL) if len(values) > 1 else (None, None)
    return {
        "values": list(values),
        "mean": fmean(values),
        "worst": min(values),
        "best": max(values),
        "low": None if low is None else max(low, lowest),
        "high": None if high is None else min(high, highest),
    }


def _spreads(splits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    before, after = ([one[when]["solve_rate"] for one in splits] for when in ("baseline", "final"))
    gain = [later - earlier for earlier, later in zip(before, after, strict=True)]
    return {"baseline": spread(before), "final": spread(after), "gain": spread(gain, lowest=-1.0)}


def _dev_curve(run_dir: Path, manifest: Mapping[str, Any]) -> list[list[float]]:
    dev = {int(label[4:]): label for label in manifest["evaluations"] if re.fullmatch(r"dev-\d+", label)}
    return [
        [step, summarize(_played(run_dir, manifest, label)).solve_rate] for step, label in sorted(dev.items())
    ]


def _played(run_dir: Path, manifest: Mapping[str, Any], label: str) -> list[EvaluationRecord]:
    path = records_path(run_dir, label)
    if not recorded.is_finished(manifest, path):
        raise DataError(f"{path} is not on record as finished", "play it again: skypod evaluate")
    return read_records(path)


def _figures(records: Sequence[EvaluationRecord]) -> dict[str, Any]:
    summary = summarize(records).to_json()
    return {key: summary[key] for key in _KEPT}
