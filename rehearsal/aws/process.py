"""Start and stop the emulated AWS as a process of the rehearsal."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import boto3
import psutil
from botocore.config import Config

from rehearsal import tls
from training.errors import SubstrateError

ACCOUNT = "123456789012"
REGION = "us-west-2"

_STOP_S = 5.0


class EmulatedSession(boto3.Session):
    """A boto3 session whose clients talk to the emulated AWS, whatever the user's own AWS settings are."""

    def __init__(self, url: str, *, ca_pem: Path | None = None, **settings: Any):
        super().__init__(**settings)
        self._url = url
        self._verify = str(ca_pem) if ca_pem else None

    def client(self, service_name: str, *args: Any, **settings: Any) -> Any:
        """Like boto3's, with the endpoint filled in, and never through a proxy."""
        if settings.get("endpoint_url") is None:
            settings["endpoint_url"] = self._url
            settings["verify"] = self._verify
        settings["config"] = Config(proxies={}).merge(settings.get("config") or Config())
        return super().client(service_name, *args, **settings)


class EmulatedAws:
    """The emulated AWS on 127.0.0.1:`port`. All its files lie below `state_dir`; its state is in memory only.

    `kube_endpoint` and `kube_ca_pem` (a PEM file) are what eks:DescribeCluster names. With `enforce_iam` it
    speaks TLS, and roles may only what their policies say; of the services that are emulated here, and not in
    ministack, it asks for known credentials alone. Trust policies are not evaluated.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        port: int,
        kube_endpoint: str,
        kube_ca_pem: Path,
        account: str = ACCOUNT,
        region: str = REGION,
        enforce_iam: bool = False,
    ):
        self.state_dir = state_dir
        self.port = port
        self.account = account
        self.region = region
        self.url = f"{'https' if enforce_iam else 'http'}://127.0.0.1:{port}"
        self.ca_pem = state_dir / "tls" / "ca.pem" if enforce_iam else None
        self._kube_endpoint = kube_endpoint
        self._kube_ca = kube_ca_pem
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What the server printed."""
        return self.state_dir / "aws.log"

    @property
    def pid(self) -> int:
        """The server's process id. Raises SubstrateError when it does not run."""
        if self._process is None:
            raise SubstrateError("The emulated AWS does not run", "Call start() first")
        return self._process.pid

    @property
    def env(self) -> dict[str, str]:
        """What boto3 and the cdk CLI need on top of the environment to reach this AWS and nothing else."""
        settings = self.state_dir / "aws-config"
        trust = {name: str(self.ca_pem) for name in ("AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS") if self.ca_pem}
        return trust | {
            "AWS_ACCESS_KEY_ID": self.account,
            "AWS_SECRET_ACCESS_KEY": "emulated",
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_CONFIG_FILE": str(settings),
            "AWS_SHARED_CREDENTIALS_FILE": str(settings),
            "AWS_PROFILE": "default",
            "AWS_EC2_METADATA_DISABLED": "true",
            "CDK_DEFAULT_ACCOUNT": self.account,
            "CDK_DEFAULT_REGION": self.region,
            "CDK_HOME": str(self.state_dir / "cdk-home"),
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    def session(self) -> boto3.Session:
        """A boto3 session of the account's administrator."""
        return EmulatedSession(
            self.url,
            ca_pem=self.ca_pem,
            aws_access_key_id=self.account,
            aws_secret_access_key="emulated",  # noqa: S106 (the emulator's only key)
            region_name=self.region,
        )

    def start(self, timeout_s: float = 20.0) -> None:
        """Start the server and return when it answers. Raises SubstrateError, also when the port is taken."""
        if _listening(self.port):
            raise SubstrateError(
                f"Port {self.port} of 127.0.0.1 is taken",
                "Stop what listens there (`ss -ltnp`), or name another port",
            )
        self.state_dir.mkdir(parents=True, exist_ok=True)
        (self.state_dir / "cdk-home").mkdir(exist_ok=True)
        (self.state_dir / "aws-config").write_text(f"[default]\nregion = {self.region}\n")
        command = [sys.executable, "-m", "rehearsal.aws", "--port", str(self.port)]
        command += ["--account", self.account, "--region", self.region]
        command += ["--kube-endpoint", self._kube_endpoint, "--kube-ca", str(self._kube_ca)]
        command += ["--state-dir", str(self.state_dir), "--parent-pid", str(os.getpid())]
        if self.ca_pem:
            tls.write(self.ca_pem.parent)
            command.append("--enforce-iam")
        root = Path(__file__).resolve().parents[2]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        environment.pop(
            "PYTHONDONTWRITEBYTECODE", None
        )  # without byte code each Lambda starts a second later
        environment |= self.env
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=self.state_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C must not end it before the stacks are gone
            )
        self._wait_ready(timeout_s)

    def _wait_ready(self, timeout_s: float) -> None:
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.ca_pem)),
        )
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                raise SubstrateError(
                    f"The emulated AWS ended at once with code {self._process.returncode}: {self._tail()}",
                    f"Read {self.log}",
                )
            try:
                with direct.open(f"{self.url}/_ministack/ready", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.05)
        self.stop()
        raise SubstrateError(
            f"The emulated AWS did not answer on {self.url} within {timeout_s:g} s: {self._tail()}",
            f"Read {self.log}",
        )

    def stop(self) -> None:
        """End the server and its Lambda processes. Raises SubstrateError when one survives."""
        if self._process is None:
            return
        children = self._children()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait(_STOP_S)
        self._process = None
        shutil.rmtree(self.state_dir / "tmp", ignore_errors=True)
        _, alive = psutil.wait_procs(children, timeout=_STOP_S)
        for child in alive:
            child.kill()
        _, alive = psutil.wait_procs(alive, timeout=_STOP_S)
        if alive or _listening(self.port):
            raise SubstrateError(
                f"Processes of the emulated AWS survived: {[child.pid for child in alive]}, port {self.port}",
                "End them by hand: kill -9 PID",
            )

    def _children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._process.pid).children(recursive=True) if self._process else []
        except psutil.NoSuchProcess:
            return []

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return " | ".join(lines[-3:]) or "it printed nothing"

    def __enter__(self) -> EmulatedAws:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _listening(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
