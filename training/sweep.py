"""One recipe under several seeds: what each run came to, and what all of them say together.

A seed draws the training tasks, the adapter's first weights and every sampled token. Base policy and
evaluation splits are the same for all seeds.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from training import lineage, metrics, seal
from training.errors import ConfigError, DataError, visible
from training.evaluate import EvaluationRecord, paired, summarize
from training.files import read_object
from training.gate import evidence
from training.gate.evidence import Evidence
from training.recipe import Recipe, but_for_seed, read_resolved, seeded
from training.statistics import mean_interval

FILE = "sweep.json"
LEVEL = 0.95
METHOD = "mean over seeds with Student's 95 % interval (cut to 0..1 for shares), and the worst seed"
_COSTS = ("training_wall_s", "training_cpu_s", "evaluation_wall_s", "evaluation_cpu_s")
_KEPT = ("n", "solved", "solve_rate", "low", "high", "ceiling", "format_rate", "policy")


def digest(recipe: Recipe) -> str:
    """SHA-256 of all that the runs of one sweep share."""
    return hashlib.sha256(json.dumps(but_for_seed(recipe), sort_keys=True).encode()).hexdigest()


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
        if os.path.lexists(run_dir) and not (path.is_file() and _is_of(read_resolved(path), recipe, seed)):
            raise _strange(run_dir, seed)


def _is_of(found: Recipe, recipe: Recipe, seed: int) -> bool:
    return found == seeded(found, seed) and but_for_seed(found) == but_for_seed(recipe)


def _strange(run_dir: Path, seed: int) -> ConfigError:
    return ConfigError(
        f"run {run_dir.name!r} is there and is not seed {seed} of this recipe",
        "give the sweep another --name, or remove that folder",
    )


def is_finished(run_dir: Path) -> bool:
    """Whether a run came to its end, with every play of the sealed splits."""
    if not (run_dir / lineage.MANIFEST).is_file():
        return False
    manifest = lineage.read(run_dir)
    played = {play["label"] for play in manifest.get(seal.PLAYS, [])}
    return "finished" in manifest and played >= seal.DECIDING


def collect(name: str, recipe: Recipe, runs: Mapping[int, Path]) -> dict[str, Any]:
    """Everything that the finished runs say, as plain data; the other seeds are named as missing.

    {"name", "recipe", "recipe_digest", "method", "seeds", "missing", "runs": [`outcome`...],
    "spread": {split: {"baseline" | "final" | "gain": `spread`}}}

    Each run has to be evidence that a gate would take, and all of them seeds of this recipe. DataError or
    ConfigError where they are not.
    """
    read = {seed: _evidence(recipe, seed, run_dir) for seed, run_dir in runs.items() if is_finished(run_dir)}
    for first, other in combinations(read.values(), 2):
        evidence.check_comparable(first, other, seeds=True)
    found = [outcome(seed, run) for seed, run in read.items()]
    return {
        "name": name,
        "recipe": recipe.model_dump(mode="json"),
        "recipe_digest": digest(recipe),
        "method": METHOD,
        "seeds": list(runs),
        "missing": [seed for seed in runs if seed not in read],
        "runs": found,
        "spread": {split: _spreads([run["splits"][split] for run in found]) for split in seal.SEALED}
        if found
        else {},
    }


def _evidence(recipe: Recipe, seed: int, run_dir: Path) -> Evidence:
    if run_dir.is_symlink():
        raise DataError(f"run {run_dir.name!r} is a link, no run of its own", "remove it, and run that seed")
    found = evidence.read(run_dir)
    if found.run != run_dir.name or not _is_of(found.recipe, recipe, seed):
        raise _strange(run_dir, seed)
    return found


def outcome(seed: int, run: Evidence) -> dict[str, Any]:
    """One finished run: sealed splits before and after, with every look beside these; dev curve, cost where
    it was measured."""
    manifest, splits = run.manifest, {}
    for split in seal.SEALED:
        before, after = run.played(seal.BASELINE)[split], run.played(seal.FINAL)[split]
        pair = paired(before, after)
        splits[split] = {
            "baseline": _figures(before),
            "final": _figures(after),
            "won": pair.won,
            "lost": pair.lost,
            "p_value": pair.p_value,
        }
    return {
        "seed": seed,
        "run": run.run,
        "commit": manifest["commit"],
        "attempts": len(manifest["attempts"]),
        "base": manifest["base"]["digest"],
        "dev": _dev_curve(manifest),
        "train": _train_curve(run.folder / "metrics.jsonl"),
        "splits": splits,
        "looks": [
            {
                "split": look.split,
                "label": look.label,
                "candidate": look.candidate,
                "again": visible(look.again or ""),
            }
            for look in run.looks
        ],
        "cost": _cost(run.folder / "cost.json"),
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


def _dev_curve(manifest: Mapping[str, Any]) -> list[list[float]]:
    """Of the manifest's figures, which the evidence was held against."""
    return sorted(
        [int(label[4:]), entry["solve_rate"]]
        for label, entry in manifest["evaluations"].items()
        if re.fullmatch(r"dev-\d+", label, re.ASCII)
        and entry["split"] == "dev"
        and entry["policy"].startswith(seal.LOCAL)
    )


def _train_curve(path: Path) -> list[list[float]]:
    try:
        rows = [(row["step"], row.get("train_solve_rate")) for row in metrics.read(path)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not as a run writes it: {error!r}", "restore it") from None
    return [[step, rate] for step, rate in rows if isinstance(rate, int | float) and math.isfinite(rate)]


def _cost(path: Path) -> dict[str, Any] | None:
    """What was measured of a run, where it was."""
    if not path.is_file():
        return None
    cost = read_object(path)
    try:
        seconds = [cost["cluster"]["wall_s"], *(cost[key] for key in _COSTS)]
        if not all(math.isfinite(one) for one in seconds):
            raise ValueError("seconds that are none")
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not as it was measured: {error!r}", "restore it, or remove it") from None
    return cost


def _figures(records: Sequence[EvaluationRecord]) -> dict[str, Any]:
    summary = summarize(records).to_json()
    return {key: summary[key] for key in _KEPT}
