"""Who is being evaluated: a name that follows from content, so that one policy cannot be played as several.

The names are those of the trainer: `base:` or `adapter:` and 16 digits. An adapter that is not the run's own
is named by its weights and options, however it is packaged.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving import adapter as adapters
from serving import manifest as packages
from serving import probe
from serving.adapter import Base, Limits
from serving.client import ChatPolicy
from serving.local import LARGEST_RANK
from training import exports, lineage
from training.errors import DataError
from training.evaluate import EvaluationSettings, opening
from training.files import tree_digest
from training.splits import row_task

LIMITS = Limits(max_rank=LARGEST_RANK)
UNVERIFIED = "unverified"


@dataclass(frozen=True)
class Candidate:
    """`name` is recorded with every episode, `short` is for labels, `source` says what the user gave.

    What cannot be verified is recorded as given; the seal takes all such for one candidate, or a second
    spelling of an address would be a second try.
    """

    name: str
    short: str
    source: str
    verified: bool = True

    @property
    def sealed_as(self) -> str:
        return self.name if self.verified else UNVERIFIED


def base(run_dir: Path, base_dir: Path) -> Candidate:
    """The run's base checkpoint. DataError when the folder holds another."""
    expected, found = lineage.read(run_dir)["base"]["digest"], tree_digest(base_dir)
    if found != expected:
        raise DataError(
            f"{base_dir} has digest {found[:16]}, the run's base is {expected[:16]}",
            "name the folder that holds the run's base (--shared)",
        )
    return Candidate(f"base:{expected[:16]}", "base", f"base {base_dir}")


def adapter(run_dir: Path, folder: Path, base_dir: Path, scratch: Path) -> tuple[Candidate, Path]:
    """An adapter in a folder, packaged or as PEFT writes it, and the packaged folder to load.

    Checked against the base by serving.adapter; DataError with its reason. `scratch` is for packaging.
    """
    packaged = _packaged(folder, base_dir, scratch)
    manifest = lineage.read(run_dir)
    if _is_own(run_dir, manifest, folder, packaged, base_dir, scratch):
        digest = manifest["adapter"]["digest"]
    else:
        digest = hashlib.sha256(json.dumps(_parts(packaged), sort_keys=True).encode()).hexdigest()
    return Candidate(f"adapter:{digest[:16]}", f"adapter-{digest[:8]}", f"adapter {folder}"), packaged


def endpoint(run_dir: Path, policy: ChatPolicy, settings: EvaluationSettings, tolerance: float) -> Candidate:
    """The model behind an endpoint; verified if it is the run's adapter by name and by what it answers.

    The name is content-addressed, but a server can serve anything under it. So it is asked the trainer's
    canaries, greedily: the tokens must be the trainer's, and their log-probabilities within `tolerance`.
    DataError when they are not.
    """
    manifest, source = lineage.read(run_dir), f"{policy.endpoint.url}#{policy.model}"
    name, canaries = policy.model.rpartition(":")[2], run_dir / "canaries.json"
    unknown = Candidate(f"{UNVERIFIED}:{source}", f"{UNVERIFIED}-{_short(source)}", source, verified=False)
    if name != manifest.get("serving", {}).get("name") or not canaries.is_file():
        return unknown
    references = probe.read_references(canaries)
    keys = {reference.key for reference in references}
    tasks = [row_task(row) for row in lineage.read_split(run_dir, "test") if f"{row['digest']}/0" in keys]
    asked = opening(tasks, settings)
    if not references or {canary.key for canary in asked} != keys:
        return unknown
    answers = {canary.key: said for canary, said in zip(asked, policy.complete(asked, top=1), strict=True)}
    _, failures = probe.compare(answers, references, tolerance)
    if failures:
        raise DataError(
            f"{source} does not answer like the adapter of that name: {'; '.join(failures[:2])}",
            "serve the adapter that the run published; compare probe.json of the run",
        )
    digest = manifest["adapter"]["digest"]
    return Candidate(f"adapter:{digest[:16]}", f"served-{digest[:8]}", source)


def _packaged(folder: Path, base_dir: Path, scratch: Path) -> Path:
    if (folder / packages.MANIFEST).is_file():
        adapters.validate(folder, Base.read(base_dir), LIMITS)
        return folder
    packed = adapters.package(
        folder, scratch, base_dir=base_dir, run_id="", evaluation_digest="", limits=LIMITS
    )
    return scratch / packed.name


def _is_own(
    run_dir: Path, manifest: Mapping[str, Any], folder: Path, packaged: Path, base_dir: Path, scratch: Path
) -> bool:
    """Whether an adapter is the one that the run's manifest names by content; what lies in adapter/ proves
    nothing."""
    own = manifest.get("adapter")
    if not own:
        return False
    if _digest(folder) == own["digest"]:
        return True
    export = run_dir / own["folder"]
    if _digest(export) == own["digest"]:
        return _parts(packaged) == _parts(_packaged(export, base_dir, scratch))
    # The export is gone. A packaged adapter's name is left: validation has found it to follow from the bytes.
    return packaged.name == manifest.get("serving", {}).get("name")


def _digest(folder: Path) -> str | None:
    """None where there is no adapter."""
    try:
        return exports.digest(folder)
    except DataError:
        return None


def _parts(packaged: Path) -> dict[str, str]:
    """The digests of weights and options: canonical, and without where the adapter came from."""
    content = (packaged / packages.MANIFEST).read_bytes()
    return dict(packages.parse(content, str(packaged / packages.MANIFEST)).files)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
