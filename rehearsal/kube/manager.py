"""The thread in which the kubelet and the controllers take their turns."""

from __future__ import annotations

import logging
import threading
import time

from rehearsal.kube.access import Access, Cache
from rehearsal.kube.controllers.job import Jobs
from rehearsal.kube.controllers.raycluster import RayClusters
from rehearsal.kube.controllers.rayservice import RayServices
from rehearsal.kube.guard import guarded
from rehearsal.kube.kubelet import Kubelet, Machine
from rehearsal.kube.ports import Ports

log = logging.getLogger("kube.manager")
# Processes and probes send no events, so there is a pass at least so often.
PERIOD_S = 0.3
STOP_S = 20.0


class Manager:
    def __init__(self, access: Access, machine: Machine, ports: Ports):
        self._access = access
        self._machine = machine
        self._ports = ports
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controllers")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End every process of every pod, then the thread."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(STOP_S + 10)

    def _run(self) -> None:
        kinds = ("Pod", "Job", "RayCluster", "RayService")
        caches = {kind: Cache(self._access, kind, self._wake) for kind in kinds}
        for cache in caches.values():
            cache.start()
        for cache in caches.values():
            cache.filled.wait(10)
        kubelet = Kubelet(self._access, caches["Pod"], self._machine)
        parts = [
            RayClusters(self._access, caches["RayCluster"], caches["Pod"], self._ports),
            RayServices(
                self._access,
                caches["RayService"],
                caches["Pod"],
                self._ports,
                self._machine.state_dir / "adapters",
                self._machine.s3,
            ),
            Jobs(self._access, caches["Job"], caches["Pod"]),
            kubelet,
        ]
        while not self._stopping.is_set():
            for part in parts:
                with guarded(log, type(part).__name__):
                    part.sync()
            self._wake.wait(PERIOD_S)
            self._wake.clear()
            # News come in bursts; one pass serves them all.
            time.sleep(0.03)
        for cache in caches.values():
            cache.stop()
        kubelet.stop(STOP_S)
