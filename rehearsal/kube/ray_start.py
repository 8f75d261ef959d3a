"""`ray start` on loopback. Run as a script by the training environment's Python.

Ray replaces --node-ip-address=127.0.0.1 by the machine's outer address and then listens on all interfaces,
unless RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER says that nodes can't reach each other anyway; but then it refuses to
start workers. So this one process claims that they can, with loopback as its own address, and Ray's
daemons, which read the variable again, keep to loopback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_TRIES = 4
# The dashboard's parts that jobs, the state of nodes and logs need. Each part is a process of 100 MB; the
# others (Serve, Train, Data, metrics pages) would only cost time and memory here.
_DASHBOARD_PARTS = "JobHead,NodeHead,StateHead"


def lean(start_process: Callable[..., Any], dashboard: str) -> Callable[..., Any]:
    """`start_process` that gives processes of the type `dashboard` only the parts that are wanted."""

    def start(command: list[str], process_type: str, *arguments: Any, **options: Any) -> Any:
        if process_type == dashboard:
            command = [*command, f"--modules-to-load={_DASHBOARD_PARTS}"]
        return start_process(command, process_type, *arguments, **options)

    return start


def patient(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """`get_node`, asked again when its answer got lost.

    On a busy machine one request may hang until its deadline of 30 s, which is also all the time that Ray
    allows for a node to appear: without a second try a healthy node would give up.
    """

    def ask(*arguments: Any) -> Any:
        for _ in range(_TRIES):
            try:
                return get_node(*arguments)
            except RuntimeError as error:
                if "Deadline Exceeded" not in str(error):
                    raise
                last = error
        raise last

    return ask


def main() -> None:
    os.environ[_SWITCH] = "1"
    from ray._private import ray_constants, services

    services.get_node_ip_address = lambda address=None: "127.0.0.1"
    os.environ[_SWITCH] = "0"
    services.get_node = patient(services.get_node)
    services.start_ray_process = lean(services.start_ray_process, ray_constants.PROCESS_TYPE_DASHBOARD)
    from ray.scripts.scripts import main as ray

    sys.exit(ray())


if __name__ == "__main__":
    main()
