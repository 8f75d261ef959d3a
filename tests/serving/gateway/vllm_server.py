"""A real vLLM server with the names that the gateway asks for, on loopback."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from serving.adapter import Adapter
from serving.endpoint import Endpoint
from tests.serving.test_vllm import PYTHON, ROOT, START_S, environment

MODEL_ID = "maze"


class VllmServer:
    """Serves `folder`/base and `folder`/adapters at one address, through kills and new starts.

    `stock` leaves out what corrects the LoRA operators of the CPU build.
    """

    def __init__(self, folder: Path, adapters: Sequence[Adapter], *, stock: bool = False):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._names = [MODEL_ID, *(f"{MODEL_ID}:{one.name}" for one in adapters)]
        self._log = folder / f"server-{port}.log"
        self._environment = environment() | ({"VLLM_PLUGINS": ""} if stock else {})
        modules = [f"{MODEL_ID}:{one.name}={folder / 'adapters' / one.name}" for one in adapters]
        command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--model", str(folder / "base"), "--served-model-name", MODEL_ID]
        command += ["--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"]
        command += ["--kv-cache-memory-bytes", str(2**27)]
        command += ["--limit-mm-per-prompt", '{"image": 10, "video": 0}']
        command += ["--distributed-executor-backend", "uni", "--enable-lora", "--max-lora-rank", "16"]
        command += ["--max-loras", str(len(adapters)), "--max-cpu-loras", "4", "--lora-modules", *modules]
        self._command = command

    def start(self) -> None:
        """Return once every model is served."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        Endpoint(self.url).wait_until_served(self._names, START_S, self._alive)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End its processes by a signal, and by SIGKILL if that takes too long."""
        os.killpg(self._process.pid, number)
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _alive(self, reason: str) -> None:
        assert self._process.poll() is None, self._log.read_text()[-3000:]


@contextmanager
def served(folder: Path, adapters: Sequence[Adapter], *, stock: bool = False) -> Iterator[VllmServer]:
    """A server that is up."""
    server = VllmServer(folder, adapters, stock=stock)
    try:
        server.start()
        yield server
    finally:
        server.stop()
