"""Going on with a run, also under a recipe that differs: what may differ, and how that is recorded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from training import lineage, recipe
from training.errors import ConfigError
from training.recipe import Recipe

Changes = dict[str, tuple[Any, Any]]
EXACT = {
    "recovery": "says when to try again, not what is computed",
    "checkpoints": "says how often and how many, not what is computed",
    "evaluation.every_steps": "plays the dev split, which trains nothing",
}
"""Keys, or their tables, that may change without any effect on the adapter, and why."""
INEXACT = {
    "topology": "the checkpoint can be loaded by any number of ranks, which add up in another order",
    "rollout.engines": "has to follow the number of GPUs",
    "optimization.micro_batch_episodes": "has to divide a rank's share, and weighs tokens by micro-batch",
    "rollout.gpu_memory_utilization": "other batches in the engine round differently",
    "rollout.kv_cache_mib": "other batches in the engine round differently",
}
"""Keys that may change, but what comes after is no longer bit by bit what it would have been, and why."""


def changes(old: Recipe, new: Recipe) -> Changes:
    """{dotted key: (old value, new value)} of all that differs."""
    before, after = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return {key: (before.get(key), after.get(key)) for key in keys}


def require_allowed(run: str, found: Changes, *, resumed: bool) -> None:
    """Raises ConfigError with every changed key when one of them may not change in this run.

    Without `resumed` none may: a run that is submitted twice by mistake is not to change its recipe.
    """
    refused = [key for key in found if not (_within(key, EXACT) or _within(key, INEXACT))]
    if not found or (resumed and not refused):
        return
    if resumed:
        raise ConfigError(
            f"run {run!r} cannot be resumed with this recipe: {describe(found)}\n"
            f"what was trained under the old {', '.join(refused)} would not be what the recipe says",
            f"undo these, or start a new run; a resumed one may change {', '.join([*EXACT, *INEXACT])}",
        )
    way_on = f"resume it with the changed recipe: `skypod train resume {run} --recipe FILE`; or "
    raise ConfigError(
        f"run {run!r} exists already, with another recipe: {describe(found)}",
        f"{'' if refused else way_on}choose another run id",
    )


def describe(found: Changes) -> str:
    """One line for each key."""
    return "".join(f"\n  {key}: {old!r} -> {new!r}" for key, (old, new) in found.items())


class Accepted(NamedTuple):
    """What differs from the recipe so far, and whether a person asked for this just now."""

    changes: Changes
    is_new: bool


def accept(run_dir: Path, new: Recipe, resume: str) -> Accepted:
    """Go on under `new`; everything that says what the run's recipe is, says so afterwards.

    `resume` is a name for this one request of a person, "" when nobody asked: a supervisor that is started
    again for the same request does not count as another. Raises ConfigError as `require_allowed` does.
    """
    with lineage.changing(run_dir) as manifest:
        old = lineage.read_recipe(run_dir)
        found = changes(old, new)
        require_allowed(run_dir.name, found, resumed=bool(resume))
        requests = manifest.setdefault("resumes", [])
        is_new = bool(resume) and resume not in [request["id"] for request in requests]
        if is_new:
            requests.append(
                {
                    "id": resume,
                    "at": lineage.now(),
                    "attempts_before": len(manifest["attempts"]),
                    "changes": {key: list(pair) for key, pair in found.items()},
                    "exact": not any(_within(key, INEXACT) for key in found),
                }
            )
        # The driver reads the file: a crash between the two leaves the manifest's, and this is done again.
        recipe.write_resolved(new, run_dir / "recipe.json")
        manifest["recipe"] = new.model_dump(mode="json")
    return Accepted(found, is_new)


def attempts_before(manifest: Mapping[str, Any]) -> int:
    """How many attempts were made before a person last resumed the run."""
    requests = manifest.get("resumes") or [{"attempts_before": 0}]
    return requests[-1]["attempts_before"]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _within(key: str, tables: Mapping[str, str]) -> bool:
    return any(key == table or key.startswith(f"{table}.") for table in tables)
