"""Names an adapter by what it computes: the weights and options that PEFT writes."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from training.errors import DataError
from training.files import RepeatedKeyError, file_digest, parse_json, read_whole

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
FILES = {WEIGHTS, CONFIG, "README.md"}
"""What PEFT writes into the folder of an adapter."""
LARGEST = 8 << 30
"""Bytes of weights: the highest rank on the largest bases stays below, and they are read whole."""
NO_TENSORS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What a wrong header makes Python raise."""
_SETS = ("target_modules", "exclude_modules", "modules_to_save")
_WHERE = "base_model_name_or_path"


def digest(folder: Path) -> str:
    """SHA-256 of an adapter: equal for equal weights and options.

    PEFT writes its sets in an order that changes from process to process, and the path of the base. Raises
    DataError when one of the two files is missing, or names something twice: what PEFT would load is open.
    """
    parts = [weights(folder), _options_digest(_file(folder, CONFIG))]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def weights(folder: Path) -> str:
    """SHA-256 of the weights alone: of names, types, shapes and values, not of how they lie in the file."""
    path = _file(folder, WEIGHTS)
    total = hashlib.sha256()
    try:
        for name, dtype, shape, values in sorted(tensors(read_whole(path, LARGEST))):
            total.update(json.dumps([name, dtype, shape]).encode())
            total.update(values)
    except RepeatedKeyError as error:
        raise _ambiguous(path, error) from None
    except NO_TENSORS:  # no safetensors: named by its bytes
        return file_digest(path)
    return total.hexdigest()


def tensors(content: bytes) -> Iterator[tuple[str, str, list[int], bytes]]:
    """(name, type, shape, little-endian values) of each tensor of a safetensors file.

    Raises one of NO_TENSORS where the header is wrong.
    """
    start = 8 + int.from_bytes(content[:8], "little")
    for name, tensor in parse_json(content[8:start]).items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            yield name, tensor["dtype"], tensor["shape"], content[start + begin : start + end]


def _file(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise DataError(f"there is no {name} in {folder}", "name a folder that PEFT wrote an adapter to")
    return folder / name


def _options_digest(path: Path) -> str:
    try:
        options = dict(parse_json(read_whole(path)))
        for name in set(_SETS) & options.keys():
            if isinstance(options[name], list):
                options[name] = sorted(options[name])
    except RepeatedKeyError as error:
        raise _ambiguous(path, error) from None
    except (ValueError, TypeError, RecursionError):  # no options of PEFT's: named by their bytes
        return file_digest(path)
    # Within an option the order may count: of patterns PEFT takes the first that matches.
    plain = sorted((name, json.dumps(value)) for name, value in options.items() if name != _WHERE)
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def _ambiguous(path: Path, error: RepeatedKeyError) -> DataError:
    return DataError(f"in {path} {error}", "export the adapter again; PEFT writes each name once")
