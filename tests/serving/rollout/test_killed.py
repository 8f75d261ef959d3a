import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.rollout.driver import KILLED

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_a_promotion_killed_at_any_write_leaves_the_old_one_or_the_new_one_and_can_go_on(
    engine, base_dir, tmp_path
):
    command = [sys.executable, "-m", "tests.serving.rollout.driver", engine.url, str(base_dir.parent)]
    environment = {key: value for key, value in os.environ.items() if key != "AWS_ENDPOINT_URL"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    places = [json.loads(line) for line in done.stdout.splitlines()]
    before = places[0][3]
    first, (_, second, _, _, _) = before[1], places[-1][5]
    assert (before, second != first) == ([2, first, None, 0.0, None], True)
    stages = []
    for place, after, ended, killed, went_on, then in places:
        where = f"write {place}, {'after' if after else 'before'} it: {done.stderr[-500:]}"
        assert (went_on, then[1:]) == (0, [second, None, 0.0, first]), where
        stages.append(tuple(killed[1:]))
        assert ended == KILLED or place == places[-1][0], where
    # Old alone, then old with a canary, then new: in this order, and nothing else.
    expected = [
        (first, None, 0.0, None),
        (first, second, 0.1, None),
        (second, None, 0.0, first),
    ]
    assert sorted(set(stages), key=stages.index) == expected
    assert stages == sorted(stages, key=expected.index)
    assert len(places) > 20
