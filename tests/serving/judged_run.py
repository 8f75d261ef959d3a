"""A run with a real adapter, played, sealed, and judged by the real gate; nothing is trained."""

from pathlib import Path

from cdk_app import promotable
from serving.base import Base
from tests.serving.artifacts import language_weights, write_export
from tests.serving.scripted_server import oracle
from tests.training import gate_run
from tests.training.gate_run import one_in
from training import exports, lineage, prepare, recipe, seal, splits
from training.files import write_json
from training.gate.evidence import BASE, CANDIDATE
from training.gate.judge import judge
from training.render import draw, image_data_url

CANARIES = 3
LOGPROB = -0.25


def make(run: Path, base_dir: Path, seed: int = 0, passes: bool = True) -> Path:
    """The run folder; its recipe names `base_dir` by its last part."""
    overrides = gate_run.SMALL | {"policy.base_model": base_dir.name}
    prepare.prepare(
        recipe.load(gate_run.RECIPE, overrides), run, base_dir=base_dir, image="t", source=gate_run.RECIPE
    )
    export = write_export(run / "checkpoints" / "last", language_weights(Base.read(base_dir), seed=seed))
    write_json(run / "generation.json", {"allowed_token_ids": [1, 2]})
    knows, rows = oracle(tasks(run, "test")), []
    for task in tasks(run, "test")[:CANARIES]:
        said = knows([image_data_url(draw(task, task.start))], [])
        rows.append({"key": f"{task.digest}/0", "token_ids": [len(said), 2], "logprobs": [LOGPROB] * 2})
    write_json(run / promotable.CANARIES, rows)
    adapter = {"folder": "checkpoints/last", "digest": exports.digest(export)}
    manifest = lineage.update(run, adapter=adapter)
    for split in seal.SEALED:
        base = "base:" + manifest["base"]["digest"][:16]
        gate_run.evaluate(run, split, seal.label(BASE, split), base, lambda digest: not one_in(3)(digest))
        after = (lambda digest: True) if passes else one_in(2)
        gate_run.evaluate(run, split, seal.label(CANDIDATE, split), gate_run.candidate(adapter), after)
    judge([run])
    return run


def tasks(run: Path, split: str) -> list:
    return [splits.row_task(row) for row in lineage.read_split(run, split)]
