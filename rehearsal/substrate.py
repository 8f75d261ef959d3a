"""The laptop's AWS and Kubernetes, started together and ended together, with a sweep for whatever is left."""

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from cdk_app.settings import Environment
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from rehearsal.kube.process import KubeStandIn
from training.errors import SubstrateError

MARK = "SKYPOD_REHEARSAL"
"""Environment variable of every process of a rehearsal, set to a value that no other rehearsal has."""
DRIVER = "python -m rehearsal.cpu.job"
"""What `skypod train submit` has to start here instead of training.run."""


@dataclass(frozen=True)
class Folders:
    """Where a rehearsal of this checkout keeps things."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / ".rehearsal"

    @property
    def shared(self) -> Path:
        """Stands for the FSx file system: what pods see as /shared."""
        return self.state / "shared"

    def serving(self, run: str) -> Path:
        """Aliases, rollouts and adapters that a rehearsal of a run serves: `skypod promote --state`."""
        return self.shared / "serving" / run

    @property
    def shell(self) -> Path:
        """`. .rehearsal/env.sh` points a shell at the rehearsal that is running."""
        return self.state / "env.sh"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def train_python(self) -> Path:
        """Stands for the train image: the interpreter that pods run."""
        return self.root / ".venv-train" / "bin" / "python"

    def size_gib(self) -> float:
        """What the checkout takes on disk, environments, caches and runs included."""
        out = subprocess.run(["du", "-sk", str(self.root)], capture_output=True, text=True, check=False)
        return int(out.stdout.split()[0]) / 2**20

    def prepare(self) -> None:
        """Make the folders; runs are on the shared file system, as on AWS."""
        (self.shared / "models").mkdir(parents=True, exist_ok=True)
        self.runs.mkdir(exist_ok=True)
        link = self.shared / "runs"
        if link.is_symlink() and link.readlink() != self.runs:
            link.unlink()  # left by a checkout that was moved: it leads nowhere, or to another's runs
        if not link.is_symlink():
            if link.exists():
                raise SubstrateError(
                    f"{link} is no link to {self.runs}", "move its content there and remove it"
                )
            link.symlink_to(self.runs, target_is_directory=True)


@dataclass(frozen=True)
class Substrate:
    aws: EmulatedAws
    kube: KubeStandIn

    def require_alive(self, error: Exception | None = None) -> None:
        """Raises SubstrateError when one of the two has ended: that is then the cause of `error`."""
        for name, pid, log in (
            ("emulated AWS", self.aws.pid, self.aws.log),
            ("Kubernetes stand-in", self.kube.pid, self.kube.log_file),
        ):
            if pid is None or not _runs(pid):
                raise SubstrateError(f"the {name} ended while it was needed", f"see {log}") from error


@contextmanager
def running(folders: Folders, environment: Environment, crds_dir: Path | None) -> Iterator[Substrate]:
    """Start both on free ports of 127.0.0.1; on the way out end every process they started.

    The AWS has the environment's region and account.
    """
    kube_port, aws_port = free_ports(2)
    state = folders.state / "substrate"
    kube_endpoint = f"https://127.0.0.1:{kube_port}"
    authority = state / "kube" / "tls" / "ca.pem"
    aws = EmulatedAws(
        state / "aws",
        port=aws_port,
        kube_endpoint=kube_endpoint,
        kube_ca_pem=authority,
        account=environment.account or ACCOUNT,
        region=environment.region,
    )
    kube = KubeStandIn(
        state / "kube",
        port=kube_port,
        train_python=folders.train_python,
        shared_dir=folders.shared,
        aws_url=aws.url,
        aws_env=aws.env,
        crds_dir=crds_dir,
    )
    with ExitStack() as stack:
        stack.callback(kube.stop)
        kube.start()
        stack.callback(aws.stop)
        aws.start()
        folders.shell.unlink(missing_ok=True)
        tell_shell(folders.shell, {**aws.env, "SKYPOD_ENTRYPOINT": DRIVER})
        stack.callback(folders.shell.unlink, missing_ok=True)
        yield Substrate(aws, kube)


def tell_shell(path: Path, env: dict[str, str]) -> None:
    """Add what a shell needs so that aws, cdk, kubectl's token and our own commands reach this rehearsal."""
    with path.open("a") as file:
        file.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nothing listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def survivors(mark: str) -> list[psutil.Process]:
    """Processes of the rehearsal with this mark that live, without this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def end_survivors(mark: str, patience_s: float = 5.0) -> list[str]:
    """Kill what outlived the orderly stop; returns their command lines, which is a fault to report."""
    deadline = time.monotonic() + patience_s
    while (left := survivors(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    names = []
    for process in left:
        try:
            names.append(" ".join(process.cmdline())[:120] or process.name())
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    return names
