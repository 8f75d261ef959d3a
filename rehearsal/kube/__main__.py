"""The stand-in's process: `python -m rehearsal.kube --state DIR --port N ...` (see `process.KubeStandIn`)."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import secrets
import signal
import ssl
import sys
import threading
from pathlib import Path
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config

from rehearsal import tls
from rehearsal.kube import schemas
from rehearsal.kube.access import Access
from rehearsal.kube.api import Api
from rehearsal.kube.auth import Authenticator
from rehearsal.kube.garbage import Housekeeper
from rehearsal.kube.kinds import Registry
from rehearsal.kube.kubelet import Machine
from rehearsal.kube.manager import Manager
from rehearsal.kube.ports import Ports
from rehearsal.kube.resources import Resources, Write
from rehearsal.kube.store import Store
from rehearsal.kube.validation import Validator

log = logging.getLogger("kube")
NAMESPACES = ("default", "kube-system", "kube-public")
READY_FILE = "ready"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rehearsal.kube", description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--train-python", type=Path, required=True)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--aws-url", required=True)
    parser.add_argument("--crds", type=Path)
    parser.add_argument("--cluster-name", default="")
    parser.add_argument("--until-stdin-closes", action="store_true")
    return parser.parse_args(arguments)


async def main(options: argparse.Namespace) -> None:
    endpoint = f"https://127.0.0.1:{options.port}"
    ports = Ports()
    ca_file, certificate, key = tls.write(options.state / "tls")
    store, registry, validator = Store(), Registry(), Validator()
    resources = Resources(store, registry, validator)
    housekeeper = Housekeeper(resources)
    bootstrap(resources, options.crds, options.state / "crds")
    own_token = secrets.token_urlsafe(32)
    authenticator = Authenticator(options.aws_url, own_token, options.cluster_name)
    machine = Machine(
        train_python=options.train_python,
        shared_dir=options.shared,
        state_dir=options.state,
        project_dir=Path(__file__).parents[2],
        aws={key: value for key, value in os.environ.items() if key.startswith("AWS_")},
    )
    api = Api(resources, authenticator, machine.pods_dir, f"127.0.0.1:{options.port}")

    config = Config()
    config.bind = [f"127.0.0.1:{options.port}"]
    config.certfile, config.keyfile = str(certificate), str(key)
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn")
    # Watches never end by themselves: don't wait for them.
    config.graceful_timeout = 0.5
    config.shutdown_timeout = 2
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(on_loop_error)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if options.until_stdin_closes:
        threading.Thread(target=wait_for_eof, args=(loop, stopping), daemon=True).start()

    server_stop = asyncio.Event()
    server = asyncio.create_task(serve(api, config, shutdown_trigger=server_stop.wait))
    chores = asyncio.create_task(housekeeper.run())
    await until_listening(options.port, server)
    manager = await asyncio.to_thread(start_manager, endpoint, ca_file, own_token, machine, ports)
    ready = options.state / READY_FILE
    ready.with_suffix(".part").write_text(json.dumps({"endpoint": endpoint, "pid": os.getpid()}))
    ready.with_suffix(".part").replace(ready)
    log.info("ready at %s", endpoint)
    await asyncio.wait(
        {asyncio.create_task(stopping.wait()), server, chores}, return_when=asyncio.FIRST_COMPLETED
    )
    log.info("stopping")
    await asyncio.to_thread(manager.stop)
    server_stop.set()
    chores.cancel()
    await asyncio.wait({server}, timeout=1)
    # Nothing is left to save. An orderly end would wait half a minute for clients to close their TLS streams.
    logging.shutdown()
    os._exit(0)


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Clients that vanish without closing their TLS stream are no news."""
    if not isinstance(context.get("exception"), TimeoutError | ConnectionError | ssl.SSLError):
        loop.default_exception_handler(context)


def bootstrap(resources: Resources, crds: Path | None, cache: Path) -> None:
    """The namespaces and CRDs that exist from the start."""
    how = Write("rehearsal")
    spaces = resources.registry.get("", "v1", "namespaces")
    for name in NAMESPACES:
        resources.create(spaces, "", {"metadata": {"name": name}}, how)
    if crds is None:
        log.warning("no CRD folder: Ray objects are accepted without validation")
        return
    definitions = resources.registry.get("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    # These are data that others wrote and checked; unknown fields in them are none of our business.
    lenient = Write("rehearsal", field_validation="Ignore")
    for crd in schemas.load_crds(crds, cache):
        crd.pop("status", None)
        resources.create(definitions, "", crd, lenient)


def start_manager(endpoint: str, ca_file: Path, token: str, machine: Machine, ports: Ports) -> Manager:
    access = Access(endpoint, ca_file, token, machine.state_dir / "discovery.json")
    manager = Manager(access, machine, ports)
    manager.start()
    return manager


async def until_listening(port: int, server: asyncio.Task) -> None:
    while not server.done():
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return
    server.result()
    raise SystemExit("the server ended before it listened")


def wait_for_eof(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Stop when the process that started this one is gone: its end of the pipe closes with it."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stopping.set)


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(main(parse(sys.argv[1:])))
