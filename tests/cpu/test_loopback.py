"""Torch's rendezvous store stays on loopback, for both of its ways to be found."""

import os
import socket
import subprocess
import sys

import pytest

pytest.importorskip("torch")

RANK = """
import os, sys
import psutil, torch.distributed as dist
from rehearsal.cpu import loopback
loopback.install()
dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
dist.barrier()
if sys.argv[2] == "0":
    connections = psutil.Process().net_connections("tcp")
    print(sorted({c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("method", ["env://", "tcp"])
def test_the_store_of_two_ranks_listens_on_loopback_only(method):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = method if method == "env://" else f"tcp://127.0.0.1:{port}"
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, url, rank], stdout=subprocess.PIPE, text=True, env=env)
        for rank in ("0", "1")
    ]
    out = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert out[0].strip() == "['127.0.0.1']"
