"""What `cdk synth` costs without validation, beside an application of one bucket, alternating in one run:

    .venv/bin/python -m tests.synth.cost [--rounds 5] [--beside FOLDER]

`--beside` measures another checkout, too. Prints one JSON object: medians of CPU seconds over the processes,
which on a busy machine are more than on a quiet one, and do not compare between runs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import psutil

from tests.synth.conftest import ROOT

PARTS = ("cli", "python", "node")
_ONE_BUCKET = """
from aws_cdk import App, Stack, aws_s3
app = App(stack_traces=False, tree_metadata=False)
aws_s3.Bucket(Stack(app, "one"), "Bucket")
app.synth()
"""


def spent(folder: Path, out: Path) -> dict[str, float]:
    """CPU seconds of one synthesis: of the CLI, of Python, of the CDK in node, and of all."""
    # The folder of this Python comes first, where the application finds the environment's.
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [str(ROOT / "node_modules" / ".bin" / "cdk"), "synth", "--quiet", "--no-validation"]
    cli = psutil.Popen(
        [*command, "--output", str(out)],
        cwd=folder,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    last: dict[psutil.Process, float] = {}
    program = {cli: "cli"}  # what has ended does not say any more what it was
    while cli.is_running() and cli.status() != psutil.STATUS_ZOMBIE:
        for process in (cli, *cli.children(recursive=True)):
            try:
                if process not in program:
                    program[process] = Path(process.exe()).name.rstrip("0123456789.")
                times = process.cpu_times()
            except psutil.Error:
                continue
            last[process] = times.user + times.system
        time.sleep(0.02)
    _, status, usage = os.wait4(cli.pid, 0)
    if status:
        raise SystemExit(f"cdk synth failed in {folder}")
    found = {part: sum(last[process] for process in last if program[process] == part) for part in PARTS}
    return {**found, "all": usage.ru_utime + usage.ru_stime}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cost-") as place:
        bucket = Path(place) / "bucket"
        bucket.mkdir()
        (bucket / "app.py").write_text(_ONE_BUCKET)
        (bucket / "cdk.json").write_text(json.dumps({"app": "python app.py", "versionReporting": False}))
        folders = {"stacks": ROOT, "one_bucket": bucket}
        if options.beside:
            folders["beside"] = options.beside.resolve()
        seconds: dict[str, list[dict[str, float]]] = defaultdict(list)
        for _ in range(options.rounds + 1):
            for what, folder in folders.items():
                seconds[what].append(spent(folder, Path(place) / f"{what}-out"))
    # The first of each has files to read and to compile that the others have not.
    print(
        json.dumps(
            {
                what: {part: round(median(r[part] for r in rounds[1:]), 2) for part in rounds[0]}
                for what, rounds in seconds.items()
            }
        )
    )


if __name__ == "__main__":
    main()
