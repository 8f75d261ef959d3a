"""Promotes in processes that are killed at the n-th write of a file, before it or after it, and once more.

A process of its own, of one thread, so that it may fork: `python -m tests.serving.rollout.driver URL FOLDER`.
For each place it prints (place, what the aliases were after the kill, what they were after the second try).
"""

import json
import os
import shutil
import sys
from dataclasses import astuple
from pathlib import Path

from moto import mock_aws

from serving import aliases
from serving.rollout.promote import promote
from tests.serving.rollout.conftest import make_candidate, make_site

KILLED, FAILED = 9, 1


def main(url: str, folder: Path) -> None:
    os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing")
    with mock_aws():
        first, second = (make_candidate(folder / "base", seed) for seed in (1, 2))
        state = folder / "state"
        site = make_site(state, url)
        promote(site, first)
        # The registry lives in this process: what a killed one entered there would be gone.
        site.registry.register(second.adapter, "s3://artifacts/x", b"{}", passed=True)
        shutil.copytree(state, folder / "begun")
        for place in range(1, 200):
            for after in (False, True):
                shutil.rmtree(state)
                shutil.copytree(folder / "begun", state)
                ended = forked(lambda place=place, after=after: promote_until(site, second, place, after))
                killed = astuple(aliases.read(site.aliases))
                went_on = forked(lambda: promote(site, second))
                found = (place, after, ended, killed, went_on, astuple(aliases.read(site.aliases)))
                print(json.dumps(found), flush=True)
            if ended != KILLED:
                return


def promote_until(site, candidate, place: int, after: bool) -> None:
    writes, replace = 0, os.replace

    def counted(source, target):
        nonlocal writes
        writes += 1
        if writes == place and not after:
            os._exit(KILLED)
        replace(source, target)
        if writes == place:
            os._exit(KILLED)

    os.replace = counted
    promote(site, candidate)


def forked(act) -> int:
    """Run it in a child of this process; its exit status."""
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(FAILED)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
