"""An adapter with all it takes to see its solve rate again elsewhere: tasks, rules, and a short script.

Only the base model is left out. The script needs torch, transformers, peft, numpy and pillow.
"""

import ast
import json
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from serving import manifest
from serving.adapter import Adapter
from training.environments import ENVIRONMENTS
from training.errors import ConfigError, DataError
from training.evaluate import EvaluationRecord, summarize

_BATCH = 16
SCRIPT = Path(__file__).with_name("portable.py")
_README = """# {name}

{solved} of {n} tasks were solved by the trainer's engine. To see it again:

    pip install torch transformers peft numpy pillow
    python play.py BASE_FOLDER        # or: python play.py BASE_FOLDER cuda

`BASE_FOLDER` is the checkpoint that the adapter was trained on, digest {base}. `play.py` prints what
`expected` in how.json holds: `solved`, and in `records_digest` that every action is the trainer's. (Another
device or type may round otherwise, and then act otherwise here and there.)

`adapter/` is a PEFT folder, which vLLM serves as well: `--enable-lora --lora-modules maze=adapter`.
`training/` holds the rules of the game, and no part of the trainer.
"""


def write(
    out: Path,
    packaged: Path,
    records: Sequence[EvaluationRecord],
    *,
    dtype: str,
    max_tokens: int,
    banned: Sequence[int],
) -> Adapter:
    """Write the folder `out`, which must not exist. `records` are the trainer's greedy plays, all of them.

    `banned` tokens are never sampled. Raises DataError for what is no packaged adapter, or no such records.
    """
    if out.exists():
        raise ConfigError(f"{out} exists", "name a folder that does not")
    adapter, contents = manifest.read_folder(packaged, manifest.MAX_WEIGHTS_BYTES)
    expected = summarize(records)  # of one evaluation, or an error
    if expected.samples > 1:
        raise DataError(f"the records have {expected.samples} samples of each task", "name a greedy play")
    first = records[0]
    how: dict[str, Any] = {
        "adapter": adapter.name,
        "base_digest": adapter.base_digest,
        "environment": {"name": first.environment, **first.options},
        "rules": {
            "max_turns": first.max_turns,
            "reward": first.reward,
            "policy": first.policy,
            "batch": _BATCH,
        },
        "dtype": dtype,
        "chat": {"add_generation_prompt": True, "tokenize": False},
        "inputs": {"padding": True, "add_special_tokens": False, "return_tensors": "pt"},
        "generate": {"do_sample": False, "max_new_tokens": max_tokens, "suppress_tokens": list(banned)},
        "tasks": [one.task for one in records],
        "expected": expected.to_json(),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        folder = Path(scratch) / "export"
        (folder / "adapter").mkdir(parents=True)
        for name, content in contents.items():
            (folder / "adapter" / name).write_bytes(content)
        (folder / "play.py").write_bytes(SCRIPT.read_bytes())
        (folder / "how.json").write_text(json.dumps(how, indent=1) + "\n")
        (folder / "README.md").write_text(
            _README.format(name=adapter.name, solved=expected.solved, n=expected.n, base=adapter.base_digest)
        )
        for module, source in _rules_of(records[0].environment):
            target = folder / module
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
        folder.rename(out)
    return adapter


def _rules_of(environment: str) -> Iterator[tuple[str, Path]]:
    """(path below the export, file) of every module that playing an environment imports."""
    waiting = ["training", "training.evaluate", ENVIRONMENTS[environment].partition(":")[0]]
    seen = set()
    while waiting:
        name = waiting.pop()
        spec = None if name in seen else find_spec(name)
        seen.add(name)
        if spec is None or spec.origin is None:
            continue
        source = Path(spec.origin)
        inside = name.replace(".", "/") + ("/__init__.py" if spec.submodule_search_locations else ".py")
        yield inside, source
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("training"):
                waiting.append(node.module)
                waiting += [
                    f"{node.module}.{each.name}" for each in node.names if _is_module(node.module, each.name)
                ]


def _is_module(package: str, name: str) -> bool:
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec else None
    return any(
        (Path(place) / f"{name}.py").is_file() or (Path(place) / name).is_dir() for place in places or ()
    )
