"""A scripted engine that loads adapters while it runs, as vLLM does, and can be ended and started again."""

import json
from pathlib import Path

from tests.serving.scripted_server import Script, ScriptedServer
from training.mazes import Maze
from training.protocol import STOP
from training.render import RenderStyle, draw, image_data_url

BASE_LOGPROB, TRAINED_LOGPROB = -0.5, -0.25
MODEL_ID = "maze"


class Engine(ScriptedServer):
    """`plays` says how an adapter plays, `logprobs` what it answers with; both by name. `refuses` are names
    that it does not load, `busy` those it works on, `failing` those whose requests end with status 500."""

    def __init__(self, plays: Script):
        super().__init__({MODEL_ID: plays})
        self.plays: dict[str, Script] = {}
        self.default = plays
        self.logprobs: dict[str, float] = {}
        self.refuses: set[str] = set()
        self.busy: set[str] = set()
        self.failing: set[str] = set()
        self.down = False
        self.paths: dict[str, str] = {}
        self.unloaded: list[str] = []
        self.logprob = lambda model, place: (
            BASE_LOGPROB if model == MODEL_ID else self.logprobs.get(model.partition(":")[2], TRAINED_LOGPROB)
        )
        outer, plain = self, self._server.RequestHandlerClass

        class Handler(plain):
            def do_GET(self) -> None:
                if outer.down:
                    self.close_connection = True
                elif self.path == "/metrics":
                    self.text(outer.metrics())
                else:
                    super().do_GET()

            def do_POST(self) -> None:
                if outer.down:
                    self.close_connection = True
                elif self.path.endswith("_lora_adapter"):
                    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                    change = outer.load if "unload" not in self.path else outer.unload
                    self.reply(*change(body))
                else:
                    super().do_POST()

            def text(self, content: str) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content.encode())

        self._server.RequestHandlerClass = Handler

    def load(self, body: dict) -> tuple[int, dict]:
        served, path = body["lora_name"], Path(body["lora_path"])
        name = served.partition(":")[2]
        if name in self.refuses:
            return 500, {"error": {"message": "ValueError: LoRA rank 64 is greater than max_lora_rank 16."}}
        assert (path / "adapter_model.safetensors").is_file()
        assert self.paths.setdefault(served, str(path)) == str(path), "a name came back with another path"
        self.models[served] = self.script(name)
        return 200, {}

    def unload(self, body: dict) -> tuple[int, dict]:
        del self.models[body["lora_name"]]
        self.unloaded.append(body["lora_name"].partition(":")[2])
        return 200, {}

    def script(self, name: str) -> Script:
        def answer(pictures: list[str], answers: list[str]) -> str:
            if name in self.failing:
                raise RuntimeError("scripted")
            return self.plays.get(name, self.default)(pictures, answers)

        return answer

    def metrics(self) -> str:
        names = ",".join(f"{MODEL_ID}:{name}" for name in self.busy)
        lines = [
            f'vllm:num_requests_running{{engine="0",model_name="{MODEL_ID}"}} {float(len(self.busy))}',
            f'vllm:num_requests_waiting{{engine="0",model_name="{MODEL_ID}"}} 0.0',
            'vllm:lora_requests_info{max_lora="2",running_lora_adapters="gone"} 1.0',
            f'vllm:lora_requests_info{{max_lora="2",running_lora_adapters="{names}"}} 2.0',
        ]
        return "\n".join(lines) + "\n"

    def crash(self) -> None:
        """It answers nothing, and knows no adapter when it is up again."""
        self.down = True
        self.models = {MODEL_ID: self.models[MODEL_ID]}

    def start_again(self) -> None:
        self.down = False


def losing(plays: Script, mazes: list[Maze], lost: int) -> Script:
    """Plays like another, but for the last `lost` mazes, in which it never moves."""
    styled = [(maze, RenderStyle.named(maze.palette)) for maze in mazes[-lost:]]
    blind = {image_data_url(draw(maze, maze.start, style)) for maze, style in styled}
    return lambda pictures, answers: STOP.value if pictures[0] in blind else plays(pictures, answers)
