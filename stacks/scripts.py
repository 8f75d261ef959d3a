"""The lifecycle scripts that nodes run when they start, by their keys in the lifecycle bucket."""

from pathlib import Path

PREFIX = "lifecycle"
_FOLDER = Path(__file__).parent / "lifecycle"


def lifecycle() -> dict[str, str]:
    """Key -> text."""
    return {f"{PREFIX}/{path.name}": path.read_text() for path in sorted(_FOLDER.iterdir())}
