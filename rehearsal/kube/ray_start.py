"""`ray start` on loopback. Run as a script by the training environment's Python.

Ray replaces --node-ip-address=127.0.0.1 by the machine's outer address and then listens on all interfaces,
unless RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER says that nodes can't reach each other anyway; but then it refuses to
start workers. So this one process claims that they can, with loopback as its own address, and Ray's
daemons, which read the variable again, keep to loopback.
"""

from __future__ import annotations

import os
import sys

_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def main() -> None:
    os.environ[_SWITCH] = "1"
    from ray._private import services

    services.get_node_ip_address = lambda address=None: "127.0.0.1"
    os.environ[_SWITCH] = "0"
    from ray.scripts.scripts import main as ray

    sys.exit(ray())


if __name__ == "__main__":
    main()
