"""How long a decision takes, for docs/benchmarks/gate.md:

python -m tests.training.gate_speed
"""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from tests.training import gate_run
from training.evaluate import read_records
from training.gate import evidence
from training.gate.decision import Entrant, decide
from training.gate.judge import judge
from training.recipe import Gate
from training.statistics import clopper_pearson, paired_difference

PAIRS = 1024
REPEATS = 20


def outcomes(share: float, salt: int) -> str:
    draw = random.Random(salt)
    return "".join("1" if draw.random() < share else "0" for _ in range(PAIRS))


def took_ms(what: Callable[[], object], repeats: int = REPEATS) -> tuple[float, float]:
    """Median CPU and wall time of several calls, each with cold caches of the intervals."""
    cpu, wall = [], []
    for _ in range(repeats):
        clopper_pearson.cache_clear()
        paired_difference.cache_clear()
        busy, started = process_time(), perf_counter()
        what()
        cpu.append(1000 * (process_time() - busy))
        wall.append(1000 * (perf_counter() - started))
    return median(cpu), median(wall)


def main() -> None:
    base, after = (gate_run.records(outcomes(share, salt)) for share, salt in ((0.5, 1), (0.96, 2)))
    ood = gate_run.records("10" * 96)
    variants = {record.digest: "bigger" for record in ood}
    entrant = Entrant(
        "one", "adapter:one", {"test-512": base, "ood": ood}, {"test-512": after, "ood": ood}, variants
    )
    report("decide, 1,024 pairs and 192 of ood", took_ms(lambda: decide(Gate(), [entrant])))
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"data__test_512_mazes": 512, "data__ood_mazes": 192, "gate__split": "test-512"}
        run = gate_run.make(
            Path(folder) / "one",
            Path(folder) / "base",
            before=gate_run.one_in(2),
            after=gate_run.one_in(40),
            **sizes,
        )
        records = run / "evaluations" / "final-test-512.jsonl"
        report("read_records, 512 episodes replayed", took_ms(lambda: read_records(records), 5))
        report("evidence of one run, 1,536 episodes", took_ms(lambda: evidence.read(run), 5))
        report("skypod gate, without its start", took_ms(lambda: judge([run]), 5))


def report(what: str, times: tuple[float, float]) -> None:
    print(f"{what:40s} CPU {times[0]:8.1f} ms, wall {times[1]:8.1f} ms")


if __name__ == "__main__":
    main()
