"""What the image sources in `docker/` pin: read from the files that the builds use."""

import re
from dataclasses import dataclass
from pathlib import Path

from training.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "docker"
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?\s*==\s*([^\s;\\,]+)")
_CUDA = re.compile(r"cuda:(\d+)\.(\d+)(?:\.\d+)?-(\w+)|cu(\d\d)(\d)")
_PYTHON = re.compile(r"python(3\.\d+)")


@dataclass(frozen=True)
class ImageSource:
    """`pins` are exact versions by package; a package that two files pin differently has both."""

    name: str
    base: str
    cuda: tuple[int, int] | None
    devel: bool
    python: str
    pins: dict[str, tuple[str, ...]]

    def version(self, package: str) -> str:
        """The pinned version, several joined by " and ", or "no pin"."""
        return " and ".join(self.pins.get(package, ())) or "no pin"


def read(name: str, folder: Path = FOLDER) -> ImageSource:
    """Raises ConfigError when the image has no Dockerfile."""
    dockerfile = folder / name / "Dockerfile"
    if not dockerfile.is_file():
        raise ConfigError(f"there is no {dockerfile}", "run this from a complete checkout")
    text = dockerfile.read_text(encoding="utf-8")
    base = next((line.split()[1] for line in text.splitlines() if line.startswith("FROM ")), "")
    cuda, python = _CUDA.search(base), _PYTHON.search(text)
    numbers = [int(group) for group in cuda.groups() if group and group.isdigit()] if cuda else []
    return ImageSource(
        name=name,
        base=base,
        cuda=(numbers[0], numbers[1]) if numbers else None,
        devel="devel" in base,
        python=python[1] if python else "",
        pins=_pins(folder / name),
    )


def _pins(folder: Path) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for path in sorted([*folder.glob("*.txt"), *folder.glob("*.lock")]):
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := _PIN.match(line.strip()):
                name, version = match[1].lower().replace("_", "-"), match[2]
                if version not in found.setdefault(name, []):
                    found[name].append(version)
    return {name: tuple(versions) for name, versions in found.items()}
