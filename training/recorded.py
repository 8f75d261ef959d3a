"""Whether a file of records is the play that the manifest has on record."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training import seal
from training.errors import DataError
from training.files import file_digest, read_whole, starting_lines


def is_finished(manifest: Mapping[str, Any], path: Path) -> bool:
    """Whether the play in `path`, evaluations/<label>.jsonl of the manifest's run, is finished.

    Manifest and seal each note the digest of the records, and neither may be asked alone: one entry is easily
    taken out. Of a sealed split both have to note it. DataError when the file is not what either noted, or
    the seal alone did.
    """
    sealed = [play for play in manifest.get(seal.PLAYS, []) if play["label"] == path.stem]
    entry = manifest.get("evaluations", {}).get(path.stem)
    noted = [*([entry] if entry else []), *sealed]
    found = file_digest(path) if path.is_file() else None
    for entry in noted:
        if entry["records"] != found:
            raise DataError(
                f"{path} is not what was recorded on {entry['played']}",
                "restore the file; a play that was changed counts for nothing",
            )
    if sealed and not entry:
        raise DataError(
            f"{path.stem} is sealed as finished, but its evaluation is not on record",
            "restore run.json; whoever took the entry out may have changed others",
        )
    # A crash between the two notes leaves the manifest's: the same play then says the seal's again.
    is_sealed = path.stem in seal.DECIDING or (entry or {}).get("split") in seal.SEALED
    return bool(sealed if is_sealed else noted)


def begins_with(path: Path, digest: str) -> bool:
    """Whether a file starts with the records of this digest: further samples of a play are appended."""
    return path.is_file() and starting_lines(read_whole(path), digest) is not None
