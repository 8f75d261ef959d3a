"""From a run folder to a candidate for promotion: what its gate decided, what to ask it, and its package."""

from pathlib import Path

from cdk_app import evaluate, players
from serving import adapter as adapters
from serving import probe
from serving.adapter import Base, Limits
from serving.rollout.candidate import Candidate, Questions
from training import exports, lineage, seal
from training.errors import ConfigError, DataError
from training.evaluate import EvaluationSettings, opening
from training.files import read_object, required
from training.gate import judge
from training.recipe import Recipe
from training.splits import row_task

CANARIES = "canaries.json"
_DECIDE = "decide again: `skypod gate"


def find(run_or_adapter: str, runs: Path) -> Path:
    """The run folder of that path, or the run below `runs` that made an adapter of that name.

    Of several that made the same adapter, the one whose decision is the newest. ConfigError for none.
    """
    if (Path(run_or_adapter) / lineage.MANIFEST).is_file():
        return Path(run_or_adapter)
    found = []
    for path in runs.glob(f"*/{lineage.MANIFEST}"):
        manifest = lineage.read(path.parent)
        if manifest.get("serving", {}).get("name") == run_or_adapter:
            found.append((str(manifest.get("gate", {}).get("made", "")), path.parent))
    if not found:
        raise ConfigError(
            f"{run_or_adapter} is no run folder, and no run in {runs} has served an adapter of that name",
            "name the folder of a run, or the folder of runs: --runs",
        )
    return max(found)[1]


def candidate(run: Path, base_dir: Path, out: Path, split: str, limits: Limits) -> Candidate:
    """The run's adapter, packaged into `out`, with the decision of its gate.

    DataError when the decision is missing, withdrawn, or of another adapter than the one that lies there.
    """
    manifest, recipe = lineage.read(run), lineage.read_recipe(run)
    if not manifest.get("adapter"):
        raise DataError(f"run {run.name!r} has no adapter", "let its training end")
    export = run / manifest["adapter"]["folder"]
    refused = verdict(run, manifest, exports.digest(export))
    adapter = adapters.package(
        export,
        out,
        base_dir=base_dir,
        run_id=manifest["run"],
        evaluation_digest=required(manifest, str, "evaluations", seal.FINAL, "records", source=manifest.path),
        limits=limits,
    )
    served = {**manifest.get("serving", {}), "name": adapter.name, "base_digest": adapter.base_digest}
    lineage.update(run, serving=served)
    return Candidate(
        adapter=adapter,
        folder=out / adapter.name,
        base=Base.read(base_dir),
        limits=limits,
        refused=refused,
        run=str(run.resolve()),
        run_manifest=(run / lineage.MANIFEST).read_bytes(),
        questions=questions(run, recipe, split),
    )


def verdict(run: Path, manifest: lineage.Manifest, digest: str) -> str:
    """Why the run's gate refused the adapter of this digest; "" when it passed.

    A decision lies in gate.json and in run.json. One that was withdrawn is in neither, and one that is in
    one place only, or not the same in both, was put there by hand.
    """
    decided = manifest.get("gate")
    path = run / judge.JSON
    if decided is None or not path.is_file():
        raise DataError(
            f"no decision on run {run.name!r} stands: it was never made, or it was withdrawn",
            f"{_DECIDE} {run}`",
        )
    if read_object(path) != decided:
        raise DataError(f"{path} is not the decision that {lineage.MANIFEST} has", f"{_DECIDE} {run}`")
    judged = required(decided, str, "evidence", manifest["run"], "adapter", source=path)
    named = required(decided, str, "candidates", manifest["run"], source=path)
    if judged != digest or named != f"adapter:{digest[:16]}" or manifest["adapter"]["digest"] != digest:
        raise DataError(
            f"the decision on run {run.name!r} is of the adapter {judged[:16]}, the one there is "
            f"{digest[:16]}",
            f"{_DECIDE} {run}`; what was not judged is not promoted",
        )
    conditions = required(decided, list, "conditions", source=path)
    if not conditions:
        raise DataError(f"{path} was decided on no conditions", f"{_DECIDE} {run}`")
    unmet = [
        required(one, str, "name", source=path)
        for one in conditions
        if not required(one, bool, "passed", source=path)
    ]
    if decided.get("decision") != "passed" or not required(decided, bool, "passed", source=path) or unmet:
        return f"{len(unmet)} of {len(conditions)} conditions unmet: {', '.join(unmet)}"
    return ""


def questions(run: Path, recipe: Recipe, split: str) -> Questions:
    """What the run's adapter is asked: the trainer's canaries, and the tasks of a held-out split."""
    if split in seal.SEALED:
        raise ConfigError(
            f"{split} is sealed, and a rollout plays its tasks each time", "use dev, or the FILE of a split"
        )
    rules = recipe.environment
    settings = EvaluationSettings(rules.make(), max_turns=rules.max_turns, reward=rules.reward)
    references = probe.read_references(run / CANARIES)
    keys = {reference.key for reference in references}
    asked = [row_task(row) for row in lineage.read_split(run, "test") if f"{row['digest']}/0" in keys]
    _, tasks = evaluate.read_tasks(run, split, recipe)
    return Questions(
        canaries=opening(asked, settings),
        references=references,
        tolerance=probe.TOLERANCES[recipe.policy.dtype],
        tasks=tasks,
        settings=settings,
        max_tokens=recipe.rollout.max_new_tokens,
        allowed_token_ids=players.allowed_token_ids(run, recipe),
    )
