"""How many resources of each type a stack has: a change that nobody meant shows here first."""

import json
import os
from collections import Counter
from pathlib import Path

from tests.synth.conftest import Synthesized

COUNTS = Path(__file__).parent / "resource_counts.json"
RENEW = "SKYPOD_RENEW_COUNTS=1 .venv/bin/python -m pytest tests/synth/test_counts.py"


def test_resource_counts_are_those_on_record(paper: Synthesized, everything: Synthesized):
    found = {
        synthesized.environment.name: {
            part: dict(sorted(Counter(r["Type"] for r in template["Resources"].values()).items()))
            for part, template in synthesized.templates.items()
        }
        for synthesized in (paper, everything)
    }
    if os.environ.get("SKYPOD_RENEW_COUNTS"):
        COUNTS.write_text(json.dumps(found, indent=1) + "\n")
    recorded = json.loads(COUNTS.read_text())
    changed = {
        f"{name}/{part}": (recorded.get(name, {}).get(part), counts)
        for name, parts in found.items()
        for part, counts in parts.items()
        if recorded.get(name, {}).get(part) != counts
    }
    assert changed == {}, f"(recorded, found). If you meant it, renew the record: {RENEW}"
    assert {name: set(parts) for name, parts in recorded.items()} == {n: set(p) for n, p in found.items()}
