"""Keep torch's rendezvous store on loopback: by default its server listens on every interface."""

import importlib
import socket
from typing import Any


def install() -> None:
    """Make every TCPStore server that torch's rendezvous starts in this process listen on 127.0.0.1."""
    from torch.distributed import TCPStore

    # `import torch.distributed.rendezvous as ...` would give the function of that name, not the module.
    rendezvous = importlib.import_module("torch.distributed.rendezvous")

    def create_store(
        hostname: str, port: int, rank: int, world_size: int, timeout: Any, use_libuv: bool = True
    ) -> TCPStore:
        if rank != 0:
            return TCPStore("127.0.0.1", port, world_size, False, timeout, use_libuv=use_libuv)
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        return TCPStore(
            "127.0.0.1",
            listener.getsockname()[1],
            world_size,
            True,
            timeout,
            multi_tenant=False,
            master_listen_fd=listener.detach(),
            use_libuv=use_libuv,
        )

    rendezvous._create_c10d_store = create_store


def bind_skyrl_servers() -> None:
    """Make SkyRL's own inference servers and router of this process listen on 127.0.0.1 alone.

    Called in every worker process of a job (Ray's worker set-up hook) and in its driver.
    """
    import skyrl.backends.skyrl_train.inference_servers.common as common

    common.default_bind_host = lambda node_ip: "127.0.0.1"
