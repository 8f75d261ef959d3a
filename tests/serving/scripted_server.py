"""An OpenAI-compatible server on loopback whose models are scripts: what a remote endpoint looks like.

Its models see only what a real one would: the pictures and answers in the request.
"""

import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from training.mazes import Maze
from training.protocol import ACTIONS, STOP
from training.render import RenderStyle, draw, image_data_url

Script = Callable[[list[str], list[str]], str]


def oracle(mazes: Sequence[Maze]) -> Script:
    """A script that knows every picture of these mazes and walks the shortest path."""
    best = {}
    for maze in mazes:
        for square in maze.distances:
            move = maze.best_move(square)
            url = image_data_url(draw(maze, square, RenderStyle.named(maze.palette)))
            best[url] = (STOP if move is None else ACTIONS[move]).value
    return lambda pictures, answers: best[pictures[-1]]


class ScriptedServer:
    """Serves `models` (name to script), conversations with up to `longest` characters of answers, and says of
    longer ones what vLLM says. `fault(count)` may return per request a status, "hang up", "silence"
    (no answer at all), "trickle" (one that never ends), "flood" (a far too long one), a status with an
    answer, or None. `received` is all that came in: path, headers and body of each request."""

    def __init__(
        self,
        models: dict[str, Script],
        fault: Callable[[int], int | str | tuple[int, dict[str, Any]] | None] = lambda count: None,
        longest: int = 10_000,
    ):
        self.models = models
        self.longest = longest
        self.fault = fault
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.logprob = lambda model, place: -0.25
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # One packet per answer: two small ones would wait 40 ms for each other.
            wbufsize = -1

            def do_GET(self) -> None:
                self.reply(200, {"data": [{"id": name} for name in outer.models]})

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                body = json.loads(content)
                with outer._lock:
                    outer.received.append((self.path, dict(self.headers), content))
                    outer.requests.append(body)
                    outer.keys.append(self.headers.get("Authorization"))
                    fault = outer.fault(len(outer.requests))
                if fault == "hang up":
                    self.close_connection = True
                elif fault == "silence":
                    outer._stopping.wait()
                elif fault in ("trickle", "flood"):
                    self.endless(b" " * (1 if fault == "trickle" else 2**20))
                elif isinstance(fault, tuple):
                    self.reply(*fault)
                elif fault is not None:
                    self.reply(int(fault), {"error": {"message": f"scripted {fault}"}})
                elif body["model"] not in outer.models:
                    self.reply(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
                elif sum(len(m["content"]) for m in body["messages"][1::2]) > outer.longest:
                    message = "This model's maximum context length is 1024 tokens. However, you requested"
                    self.reply(400, {"error": {"message": message}})
                else:
                    self.reply(200, outer.complete(body))

            def reply(self, status: int, value: dict[str, Any]) -> None:
                content = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def endless(self, piece: bytes) -> None:
                self.send_response(200)
                self.end_headers()
                while not outer._stopping.wait(0.01):
                    self.wfile.write(piece)
                    self.wfile.flush()

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that gave up is no news."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        pictures = [m["content"][0]["image_url"]["url"] for m in body["messages"] if m["role"] == "user"]
        answers = [m["content"] for m in body["messages"] if m["role"] == "assistant"]
        text = self.models[body["model"]](pictures, answers)
        choice: dict[str, Any] = {
            "message": {"role": "assistant", "content": text},
            "token_ids": [len(text or ""), 2],
        }
        if body.get("logprobs"):
            places = []
            for place, token in enumerate(choice["token_ids"]):
                value = self.logprob(body["model"], place)
                listed = [
                    {"token": f"token_id:{token}", "logprob": value},
                    {"token": "token_id:9", "logprob": -3.0},
                ]
                places.append({**listed[0], "top_logprobs": listed})
            choice["logprobs"] = {"content": places}
        return {"choices": [choice]}

    def stop(self) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> "ScriptedServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self.stop()
