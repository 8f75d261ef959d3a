"""The server's command line, read before anything of ministack is imported."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """What the server needs to know."""

    port: int
    account: str
    region: str
    kube_endpoint: str
    kube_ca: Path
    state_dir: Path
    parent_pid: int
    """End when this process is gone; 0 means never."""
    enforce_iam: bool = False
    """Evaluate every caller's policies, over TLS with the certificate in `state_dir`/tls."""

    @property
    def url(self) -> str:
        """Where the server answers."""
        return f"{'https' if self.enforce_iam else 'http'}://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """ministack's settings: all on loopback, nothing by docker, no optional listener, no persistence."""
        own = {}
        if self.enforce_iam:
            authority = str(self.state_dir / "tls" / "ca.pem")
            # The second is what a function that answers by urllib trusts.
            own = {"AUTH": "true", "USE_SSL": "1", "AWS_CA_BUNDLE": authority, "SSL_CERT_FILE": authority}
        return own | {
            "GATEWAY_PORT": str(self.port),
            "BIND_HOST": "127.0.0.1",
            "MINISTACK_HOST": "localhost",
            "MINISTACK_ACCOUNT_ID": self.account,
            "MINISTACK_REGION": self.region,
            "IOT_MTLS_ENABLED": "0",
            "SFTP_ENABLED": "0",
            "LAMBDA_EXECUTOR": "local",
            "DOCKER_HOST": f"unix://{self.state_dir}/no-docker.sock",
            "TMPDIR": str(self.state_dir / "tmp"),
            "STATE_DIR": str(self.state_dir / "tmp"),
            "AWS_ENDPOINT_URL": self.url,
            "MINISTACK_WORKER_THREADS": "32",
            "MALLOC_ARENA_MAX": "2",
        }


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line of `python -m rehearsal.aws`."""
    parser = argparse.ArgumentParser(prog="python -m rehearsal.aws", description="Emulated AWS on 127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--account", default="123456789012")
    parser.add_argument("--region", default="us-west-2")
    parser.add_argument(
        "--kube-endpoint", required=True, help="what eks:DescribeCluster names as the endpoint"
    )
    parser.add_argument("--kube-ca", type=Path, required=True, help="PEM file of that endpoint's authority")
    parser.add_argument(
        "--state-dir", type=Path, required=True, help="for Lambda code and other temporary files"
    )
    parser.add_argument("--parent-pid", type=int, default=0, help="end when this process is gone")
    parser.add_argument("--enforce-iam", action="store_true", help="evaluate policies; speaks TLS")
    return Options(**vars(parser.parse_args(arguments)))
