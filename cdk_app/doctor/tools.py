"""The programs that a deploy runs on this machine: node, the cdk command line, and kubectl for people."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cdk_app.doctor.finding import Finding, Status, Unknown, judge, unknown
from stacks.environment import Environment

AREA = "tools"
ROOT = Path(__file__).parents[2]
LEAST_NODE = 20
RECOMMENDED_NODE = 22
"""Node 20 is out of support since 2026-04, and AWS's JavaScript SDK drops it in 2027."""


@dataclass(frozen=True)
class Tools:
    """Versions found here, "" where there is none. `cdk_pinned` and `library_pinned` are the repository's."""

    node: str
    cdk: str
    cdk_pinned: str
    library: str
    library_pinned: str
    kubectl: str


def read(root: Path = ROOT) -> Tools:
    package = json.loads((root / "package.json").read_text())
    installed = root / "node_modules" / "aws-cdk" / "package.json"
    pinned = re.search(r"aws-cdk-lib==([\d.]+)", (root / "pyproject.toml").read_text())
    client = _output("kubectl", "version", "--client", "--output", "json")
    return Tools(
        node=_output("node", "--version").strip().removeprefix("v"),
        cdk=json.loads(installed.read_text())["version"] if installed.is_file() else "",
        cdk_pinned=package["devDependencies"]["aws-cdk"],
        library=_installed("aws-cdk-lib"),
        library_pinned=pinned[1] if pinned else "",
        kubectl=json.loads(client)["clientVersion"]["gitVersion"].removeprefix("v") if client else "",
    )


def _output(*command: str) -> str:
    """What the command prints; "" when it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def check(environment: Environment, tools: Tools) -> list[Finding]:
    install = "make install"
    major = int(tools.node.split(".")[0]) if tools.node else 0
    return [
        judge(
            AREA,
            "node",
            major >= RECOMMENDED_NODE,
            tools.node or "missing",
            needed=f"{RECOMMENDED_NODE} or newer",
            remedy=f"install Node.js {RECOMMENDED_NODE} or 24",
            warn=major >= LEAST_NODE,
        ),
        judge(
            AREA,
            "cdk command line",
            tools.cdk == tools.cdk_pinned,
            tools.cdk or "missing",
            needed=f"{tools.cdk_pinned} (package.json)",
            remedy=install,
        ),
        judge(
            AREA,
            "aws-cdk-lib",
            tools.library == tools.library_pinned,
            tools.library or "missing",
            needed=f"{tools.library_pinned} (pyproject.toml)",
            remedy=install,
        ),
        _kubectl(environment.eks.version, tools.kubectl),
    ]


def _kubectl(cluster: str, found: str) -> Finding:
    """kubectl works with a cluster one minor version older or newer; our own commands do not need it."""
    if not found:
        return Finding(AREA, "kubectl", Status.OK, "not installed; only people need it")
    if not re.match(r"1\.\d+", found):
        return unknown(
            AREA, "kubectl", Unknown(f"version {found!r} cannot be read", "kubectl version --client")
        )
    apart = abs(int(found.split(".")[1]) - int(cluster.split(".")[1]))
    return judge(
        AREA,
        "kubectl",
        apart <= 1,
        found,
        needed=f"within one minor version of {cluster}",
        remedy=f"install kubectl {cluster}",
        warn=True,
    )
