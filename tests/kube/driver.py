"""A driver on real Ray: training.run with a training of a few tenths of a second a step instead of SkyRL's.

`python -m tests.kube.driver RUN_DIR TOKEN`. The file `plan.json` of the run folder says what befalls the
attempt of each token after its second step: what it does to itself, or "wait" for what is done to it. Without
an entry it finishes the run in three steps, and with "slow" in forty.
"""

import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

from training import attempts, exports, lineage, run
from training.files import read_json, write_json


def train(chosen, run_dir: Path, shared: Path, backend, events, fence) -> Path:
    import ray

    @ray.remote(num_gpus=1, max_restarts=0)
    class Rank:
        def step(self, number: int) -> tuple[int, int]:
            time.sleep(0.25)
            return number, os.getpid()

    ranks = [Rank.options(scheduling_strategy="SPREAD").remote() for _ in range(4)]
    plan = read_json(run_dir / "plan.json").get(str(events._attempt), "")
    first = attempts.newest_step(run_dir) + 1
    for step in range(first, first + {"": 3, "slow": 40}.get(plan, 2000)):
        found = ray.get([rank.step.remote(step) for rank in ranks])
        with fence():
            lineage.append(run_dir, "checkpoints", {"step": step})
        events.emit("step", step=step, ranks=[pid for _, pid in found])
        if step > first and plan in ("SIGKILL", "SIGSTOP"):
            os.kill(os.getpid(), getattr(signal, plan))
        if step > first and plan == "SIGSTOP while publishing":
            with fence():
                os.kill(os.getpid(), signal.SIGSTOP)
        if step > first and plan == "code":
            raise ValueError("a mistake")
    adapter = run_dir / "adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / exports.WEIGHTS).write_text(f"weights of step {step}")
    write_json(adapter / exports.CONFIG, {})
    return adapter


if __name__ == "__main__":
    backend = ModuleType("training.skyrl.backend")
    backend.CUDA = SimpleNamespace(name="cpu", server_setup="")
    experiment = ModuleType("training.skyrl.experiment")
    experiment.run = train
    package = ModuleType("training.skyrl")
    package.experiment, package.backend, package.__path__ = experiment, backend, []
    sys.modules |= {
        "training.skyrl": package,
        "training.skyrl.backend": backend,
        "training.skyrl.experiment": experiment,
    }
    run.main(Path(sys.argv[1]), None, int(sys.argv[2]))
