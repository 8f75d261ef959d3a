"""Names an adapter by what it computes."""

import hashlib
import json
from pathlib import Path

from training.files import file_digest, tree_digest

CONFIG = "adapter_config.json"
_WHERE = "base_model_name_or_path"


def digest(folder: Path) -> str:
    """SHA-256 of an adapter as PEFT writes it: equal for equal weights and options.

    PEFT writes its sets in an order that changes from process to process, and the path of the base.
    """
    return tree_digest(folder, read={CONFIG: _options_digest})


def _options_digest(path: Path) -> str:
    try:
        options = json.loads(path.read_bytes())
        plain = {
            key: sorted(value) if isinstance(value, list) else value
            for key, value in options.items()
            if key != _WHERE
        }
    except (ValueError, TypeError, AttributeError):  # no options of PEFT's: named by its bytes
        return file_digest(path)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
