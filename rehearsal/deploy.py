"""Drives the real cdk command line against the emulated AWS: synth, bootstrap, deploy, diff, destroy.

`env` is what `EmulatedAws.env` gives; `app_args` name the app, for example `["-c", "environment=paper"]`, or
`assembly_args(path)` for an assembly that `synth` has written. Every function runs in the repository root.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from training.errors import SubstrateError

ROOT = Path(__file__).resolve().parents[1]
# Several stacks at once, where their dependencies allow it; then the CLI cannot ask, and must be told not to.
DEPLOY = ("deploy", "--all", "--require-approval", "never", "--concurrency", "4")
DESTROY = ("destroy", "--all", "--concurrency", "4")
"""As the pages say it; a test holds them together."""


@dataclass(frozen=True)
class Event:
    """One step of progress. `status` is started, progress, done, unchanged or failed."""

    stage: str
    status: str
    stack: str = ""
    """Empty when the event concerns the whole stage."""
    detail: str = ""
    seconds: float = 0.0
    """Since the stage began."""


OnEvent = Callable[[Event], None]
Watch = Callable[[], None]
"""Called while the CLI runs; raises when waiting has no use any more. The CLI itself retries for a minute."""

_SETTINGS = {
    "CI": "true",
    "NO_COLOR": "1",
    "CDK_DISABLE_CLI_TELEMETRY": "true",
    "CDK_DISABLE_VERSION_CHECK": "1",
    "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "20",
    "NODE_NO_WARNINGS": "1",
    # The validator takes ten seconds a process; `make synth` and the tests run it.
    "CDK_VALIDATION": "false",
}
_RESOURCE = re.compile(
    r"^(?P<stack>[\w-]+) \|\s*(?P<done>\d+)(?P<total>/\d+)? \| [\d: APM]+ \| "
    r"(?P<status>\w+)\s+\| (?P<what>.*)$"
)
_STEPS = (
    (re.compile(r"^(?P<stack>[\w-]+): (?:deploying|destroying)\.\.\."), "started"),
    (re.compile(r"^\s*✅\s+(?P<stack>[\w-]+) \(no changes\)"), "unchanged"),
    (re.compile(r"^\s*✅\s+(?P<stack>[\w-]+)(?:: destroyed)?\s*$"), "done"),
    (re.compile(r"^\s*❌\s+(?P<stack>[\w-]+)"), "failed"),
)
_NOISE = ("Source Location", "(no user code in", "CloudTrail delivery", "Failed resources:")
_LONGEST_CAUSE = 12
"""Lines of the CLI's own explanation that go into an error."""
_WATCH_EVERY_S = 0.5
_END_S = 5


def _nothing() -> None:
    """Watches nothing."""


def assembly_args(assembly: Path) -> list[str]:
    """The app arguments that use an assembly as it is, without another synth."""
    return ["--app", str(assembly)]


def synth(
    env: Mapping[str, str],
    app_args: Sequence[str],
    assembly: Path,
    on_event: OnEvent,
    watch: Watch = _nothing,
) -> None:
    """Synthesize the app into `assembly`, once for all later calls."""
    _run("synth", ["synth", "--quiet", "--output", str(assembly), *app_args], env, on_event, watch)


def bootstrap(env: Mapping[str, str], on_event: OnEvent, watch: Watch = _nothing) -> None:
    """Make the CDK's own roles and bucket in the account and region of `env`."""
    target = f"aws://{env['CDK_DEFAULT_ACCOUNT']}/{env['CDK_DEFAULT_REGION']}"
    _run("bootstrap", ["bootstrap", target, "--app", ""], env, on_event, watch)


def deploy(
    env: Mapping[str, str], app_args: Sequence[str], on_event: OnEvent, watch: Watch = _nothing
) -> None:
    """Deploy all stacks. A failing stack is rolled back by CloudFormation and raises SubstrateError."""
    _run("deploy", [*DEPLOY, "--progress", "events", *app_args], env, on_event, watch)


def diff(env: Mapping[str, str], app_args: Sequence[str], on_event: OnEvent) -> tuple[str, ...]:
    """The stacks that a deploy would change; empty when all is as deployed."""
    lines = _run("diff", ["diff", *app_args], env, on_event)
    changed = []
    stack = ""
    for line in lines:
        header = re.match(r"^Stack (\S+)", line)
        if header:
            stack = header[1]
        elif line.startswith(("Resources", "Parameters", "Outputs", "Conditions", "IAM ", "Security Group")):
            changed.append(stack)
    return tuple(dict.fromkeys(changed))


def drift(env: Mapping[str, str], app_args: Sequence[str], on_event: OnEvent) -> tuple[str, ...]:
    """The stacks of which something was changed by hand, by what CloudFormation detects."""
    lines = _run("drift", ["drift", *app_args], env, on_event)
    found = [re.match(r"^Stack (\S+)|(Modified|Deleted) Resources", line) for line in lines]
    drifted, stack = [], ""
    for match in filter(None, found):
        if match[1]:
            stack = match[1]
        else:
            drifted.append(stack)
    return tuple(dict.fromkeys(drifted))


def destroy(
    env: Mapping[str, str], app_args: Sequence[str], on_event: OnEvent, watch: Watch = _nothing
) -> None:
    """Destroy all stacks, dependents first."""
    _run("destroy", [*DESTROY, "--force", "--progress", "events", *app_args], env, on_event, watch)


def _run(
    stage: str, arguments: list[str], env: Mapping[str, str], on_event: OnEvent, watch: Watch = _nothing
) -> list[str]:
    began = time.monotonic()
    on_event(Event(stage, "started"))
    process = subprocess.Popen(
        [str(_cdk()), *arguments, "--no-notices", "--no-color"],
        cwd=ROOT,
        env=_environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a Ctrl-C reaches it through us, so that its own children end too
    )
    lines: list[str] = []
    try:
        for line in _lines(process, watch):
            lines.append(line.rstrip())
            event = _parse(stage, lines[-1], time.monotonic() - began)
            if event is not None:
                on_event(event)
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    seconds = time.monotonic() - began
    if code != 0:
        on_event(Event(stage, "failed", seconds=seconds))
        raise SubstrateError(f"cdk {stage} failed: {_cause(lines)}", _remedy(stage, lines))
    on_event(Event(stage, "done", seconds=seconds))
    return lines


def _lines(process: subprocess.Popen[str], watch: Watch) -> Iterator[str]:
    """What the process prints until it closes its output, with `watch` called in between."""
    printed: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in process.stdout or ():
            printed.put(line)
        printed.put(None)

    threading.Thread(target=read, daemon=True).start()
    watched = time.monotonic()
    while True:
        if time.monotonic() - watched >= _WATCH_EVERY_S:
            watch()
            watched = time.monotonic()
        try:
            line = printed.get(timeout=_WATCH_EVERY_S)
        except queue.Empty:
            continue
        if line is None:
            return
        yield line


def _cdk() -> Path:
    command = ROOT / "node_modules" / ".bin" / "cdk"
    if not command.exists():
        raise SubstrateError(
            "The cdk command line is not installed", f"Run `npm ci` in {ROOT} (needs Node 20 or newer)"
        )
    return command


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    # The user's own AWS and CDK settings must not reach through to another account.
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "CDK_"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    scratch = {"TMPDIR": env["CDK_HOME"]} if "CDK_HOME" in env else {}  # jsii unpacks itself there
    return {**kept, **_SETTINGS, **env, **scratch, "PATH": path}


def _parse(stage: str, line: str, seconds: float) -> Event | None:
    resource = _RESOURCE.match(line)
    if resource:
        counted = f"{resource['done']}{resource['total'] or ''}"
        return Event(
            stage,
            "progress",
            resource["stack"],
            f"{counted} {resource['status']} {resource['what']}",
            seconds,
        )
    for pattern, status in _STEPS:
        step = pattern.match(line)
        if step and step["stack"] != "Environment":
            return Event(stage, status, step["stack"], seconds=seconds)
    return None


def _cause(lines: Sequence[str]) -> str:
    """The CLI's own explanation: what follows its last failure mark, or its last lines."""
    marks = [index for index, line in enumerate(lines) if line.lstrip().startswith(("❌", "‣"))]
    told = lines[marks[0] :] if marks else lines[-_LONGEST_CAUSE:]
    kept = [line.strip() for line in told if line.strip() and not line.strip().startswith(_NOISE)]
    return "\n    ".join(_unique(kept)[:_LONGEST_CAUSE]) or "it gave no reason"


def _unique(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))


def _remedy(stage: str, lines: Sequence[str]) -> str:
    text = "\n".join(deque(lines, 60))
    if "bootstrap" in text and stage == "deploy":
        return "Bootstrap the account first: `cdk bootstrap`"
    if stage == "synth":
        return "Run `make synth` to see the whole trace"
    return "Correct the named resource and run it again; the stack was rolled back to its last good state"


def _end(process: subprocess.Popen[str]) -> None:
    """Ask the CLI to end, then kill what is left of it and of its children."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGINT)
        process.wait(_END_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_END_S)
