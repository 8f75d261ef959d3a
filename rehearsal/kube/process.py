"""Starting and stopping the Kubernetes stand-in."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from rehearsal.kube.ports import is_free
from training.errors import SubstrateError

_STOP_S = 45.0


class KubeStandIn:
    """The API server and its controllers as one background process.

    state_dir: its files (certificates, pod folders and logs); emptied at start. train_python: the Python
    whose environment plays the train and serve images. shared_dir: the folder behind the claim `shared`.
    aws_url: the emulated AWS, for STS and S3. crds_dir: CustomResourceDefinitions as YAML; without it Ray
    objects are accepted unvalidated, with a warning in each answer. aws_env: what processes get to reach AWS
    (AWS_* variables).
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        port: int,
        train_python: Path,
        shared_dir: Path,
        aws_url: str,
        crds_dir: Path | None = None,
        cluster_name: str = "",
        aws_env: dict[str, str] | None = None,
    ):
        self.state_dir = Path(state_dir).resolve()
        self.port = port
        # Not resolved: a virtual environment's python is a link, and where it leads isn't the environment.
        self._train_python = Path(os.path.abspath(train_python))
        self._shared_dir = Path(shared_dir).resolve()
        self._aws_url = aws_url
        self._crds_dir = Path(crds_dir).resolve() if crds_dir else None
        self._cluster_name = cluster_name
        self._aws_env = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-west-2",
            **(aws_env or {}),
            "AWS_ENDPOINT_URL": aws_url,
        }
        self._process: subprocess.Popen | None = None

    @property
    def endpoint(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_pem(self) -> Path:
        """The file with the CA certificate. It exists once `start` has returned."""
        return self.state_dir / "tls" / "ca.pem"

    @property
    def log_file(self) -> Path:
        return self.state_dir / "kube.log"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self, timeout_s: float = 30.0, *, outlive: bool = False) -> None:
        """Start and wait until it serves. Raises SubstrateError with the cause.

        Unless `outlive`, it ends with the process that called this, however that ends.
        """
        if not self._train_python.exists():
            raise SubstrateError(
                f"no Python at {self._train_python}", "create the training environment (make rehearse does)"
            )
        if not is_free(self.port):
            raise SubstrateError(
                f"port {self.port} on 127.0.0.1 is taken", "stop what listens there or choose another port"
            )
        if self._crds_dir and not self._crds_dir.is_dir():
            raise SubstrateError(f"no CRD folder at {self._crds_dir}", "leave crds_dir out to go without")
        for stale in ("pods", "tls", "ready", "discovery.json"):
            path = self.state_dir / stale
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        self.state_dir.mkdir(parents=True, exist_ok=True)
        self._shared_dir.mkdir(parents=True, exist_ok=True)
        self._process = self._launch(outlive)
        deadline = time.monotonic() + timeout_s
        while not (self.state_dir / "ready").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                words = self.log_file.read_text(errors="replace")[-1500:]
                self.stop()
                raise SubstrateError(
                    f"the Kubernetes stand-in did not come up within {timeout_s:.0f} s:\n{words}",
                    f"see {self.log_file}",
                )
            time.sleep(0.02)

    def stop(self) -> None:
        """End the server and every process that it started. Does nothing when it does not run."""
        pid_file = self.state_dir / "kube.pid"
        if self._process is not None:
            if self._process.stdin:
                self._process.stdin.close()
            if self._process.poll() is None:
                self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                # The shims of its pods see its end and end their families by themselves.
                self._process.kill()
                self._process.wait()
            self._process = None
        elif pid_file.exists():
            _end_other(int(pid_file.read_text()))
        pid_file.unlink(missing_ok=True)
        (self.state_dir / "ready").unlink(missing_ok=True)

    def _launch(self, outlive: bool) -> subprocess.Popen:
        options = {
            "--state": self.state_dir,
            "--port": self.port,
            "--train-python": self._train_python,
            "--shared": self._shared_dir,
            "--aws-url": self._aws_url,
            "--cluster-name": self._cluster_name,
        } | ({"--crds": self._crds_dir} if self._crds_dir else {})
        command = [sys.executable, "-m", "rehearsal.kube"]
        command += [f"{key}={value}" for key, value in options.items()]
        command += [] if outlive else ["--until-stdin-closes"]
        env = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "RAY_"))}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        project = str(Path(__file__).parents[2])
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [project, env.get("PYTHONPATH")]))
        with self.log_file.open("wb") as log:
            # Our own program with our own arguments.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if outlive else subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env | self._aws_env,
                cwd=self.state_dir,
                start_new_session=True,
            )
        (self.state_dir / "kube.pid").write_text(str(process.pid))
        return process


def _end_other(pid: int) -> None:
    """End a stand-in that another process started, if the process of that number is still one."""
    try:
        if b"rehearsal.kube" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_S
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return
