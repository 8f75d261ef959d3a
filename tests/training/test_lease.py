"""One supervisor and one driver on a run, whatever dies, hangs or comes back, and whatever clocks do."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from training import attempts, lease, lineage
from training.errors import DataError, SubstrateError
from training.lease import FencedError, Lease
from training.locks import LockedError, locked

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    """Time that passes when somebody waits; `meanwhile` is what others do then, one call per wait."""

    def __init__(self, *meanwhile):
        self.now, self.waits = 1000.0, 0
        self.meanwhile = list(meanwhile)

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.waits += 1
        if self.meanwhile:
            self.meanwhile.pop(0)()


def take(run_dir: Path, holder: str, clock: Clock | None = None, patience_s: float = 5.0) -> Lease:
    clock = clock or Clock()
    return lease.take(run_dir, holder, patience_s, clock, clock.wait)


def test_a_free_lease_is_taken_at_once(tmp_path):
    clock = Clock()
    assert take(tmp_path, "a", clock).holder == "a"
    assert clock.waits == 0
    lease.release(tmp_path, "a")
    assert take(tmp_path, "b", clock).holder == "b"
    assert clock.waits == 0


def test_a_second_supervisor_is_refused_at_the_first_beat_and_told_who_is_first(tmp_path):
    take(tmp_path, "laptop:17:ab")
    clock = Clock(lambda: None, lambda: lease.renew(tmp_path, "laptop:17:ab", 3.0))
    with pytest.raises(SubstrateError, match=r"is supervised already, by laptop:17:ab"):
        take(tmp_path, "b", clock, patience_s=60)
    assert clock.waits == 2
    assert lease.read(tmp_path).holder == "laptop:17:ab"


def test_a_lease_whose_beat_stands_still_is_taken_over_with_what_was_spent(tmp_path):
    take(tmp_path, "a")
    assert lease.next_token(tmp_path, "a") == 1
    lease.renew(tmp_path, "a", 120.5)
    clock = Clock()
    found = take(tmp_path, "b", clock)
    assert clock.now >= 1005
    assert (found.token, found.spent_s, found.holder) == (1, 120.5, "b")
    for late in (
        lambda: lease.renew(tmp_path, "a", 1.0),
        lambda: lease.next_token(tmp_path, "a"),
        lambda: lease.owned(tmp_path, "a").__enter__(),
    ):
        with pytest.raises(FencedError, match="was taken over by b"):
            late()
    lease.release(tmp_path, "a")
    assert lease.read(tmp_path).holder == "b"


def test_of_two_challengers_one_wins(tmp_path):
    take(tmp_path, "dead")
    others = [lambda: None] * 9 + [lambda: take(tmp_path, "faster", patience_s=0)]
    with pytest.raises(SubstrateError, match="by faster"):
        take(tmp_path, "slower", Clock(*others))


def test_no_wall_clock_is_asked(tmp_path, monkeypatch):
    def jump():
        raise AssertionError("the wall clock was asked")

    take(tmp_path, "a")
    monkeypatch.setattr(time, "time", jump)
    clock = Clock()
    assert take(tmp_path, "b", clock).holder == "b"
    lease.renew(tmp_path, "b", 0.0)
    # A file from the future or the past is as good as any other.
    os.utime(tmp_path / lease.FILE, (4e9, 4e9))
    lease.renew(tmp_path, "b", 0.0)
    with pytest.raises(SubstrateError):
        take(tmp_path, "c", Clock(lambda: lease.renew(tmp_path, "b", 0.0)))


def test_an_older_driver_is_fenced_and_the_newest_is_not(tmp_path):
    take(tmp_path, "a")
    first, second = (lease.next_token(tmp_path, "a") for _ in range(2))
    with lease.held(tmp_path, second):
        pass
    with (
        pytest.raises(FencedError, match=r"attempt 1 of run .* was replaced by attempt 2"),
        lease.held(tmp_path, first),
    ):
        raise AssertionError("the block of a fenced driver was entered")


def test_a_driver_without_a_supervisor_publishes_until_there_is_one(tmp_path):
    with lease.held(tmp_path, 0):
        pass
    take(tmp_path, "a")
    with lease.held(tmp_path, 0):
        pass
    lease.next_token(tmp_path, "a")
    with pytest.raises(FencedError), lease.held(tmp_path, 0):
        pass


def test_publishing_and_the_manifest_share_one_lock(tmp_path):
    (tmp_path / "run.json").write_text('{"attempts": []}')
    with lease.held(tmp_path, 0):
        attempts.note(tmp_path, 0, job="j")
        assert lineage.read(tmp_path)["attempts"][0]["job"] == "j"


def test_a_file_that_is_no_lease_is_said_to_be_none(tmp_path):
    for text in ("", "[]", "[" * 100_000, '{"token": 1, "owner": "x"}', '{"token": "1"}', '{"holder": null}'):
        (tmp_path / lease.FILE).write_text(text)
        with pytest.raises(DataError, match="is no lease"):
            lease.read(tmp_path)


HOLD = """
import sys, time
from pathlib import Path
from training.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has the folder locked."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_stopped_process_keeps_its_lock_and_a_killed_one_does_not(tmp_path, holder):
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(LockedError, match="locked by another process"), locked(tmp_path, wait_s=0.05):
        pass
    holder.kill()
    holder.wait()
    with locked(tmp_path, wait_s=0.05):
        pass


def test_the_beat_is_left_out_while_the_folder_is_locked(tmp_path, holder):
    lease_file = tmp_path / lease.FILE
    lease_file.write_text(json.dumps({"token": 1, "holder": "a", "beat": 1, "spent_s": 0.0}))
    with pytest.raises(LockedError):
        lease.renew(tmp_path, "a", 1.0)
    assert lease.read(tmp_path).beat == 1


def _drive(run_dir: str, token: int, out: str) -> None:
    """A driver: appends its token while it may, in two steps that a lock has to keep together."""
    path = Path(out)
    while True:
        try:
            with lease.held(Path(run_dir), token):
                before = path.read_text()
                time.sleep(0.001)
                path.write_text(before + f"{token}\n")
        except FencedError:
            return


def test_under_concurrency_no_driver_publishes_after_a_newer_one_was_started(tmp_path):
    """Five supervisors take over one after another while all older drivers go on publishing."""
    run_dir, out = tmp_path / "run", tmp_path / "published"
    run_dir.mkdir()
    out.write_text("")
    start = multiprocessing.get_context("spawn").Process
    drivers = []
    for number in range(1, 6):
        holder = f"supervisor-{number}"
        take(run_dir, holder, patience_s=0.01)
        token = lease.next_token(run_dir, holder)
        assert token == number
        drivers.append(start(target=_drive, args=(str(run_dir), token, str(out))))
        drivers[-1].start()
        end = time.monotonic() + 60
        while out.read_text().count(f"{token}\n") < 5:
            assert time.monotonic() < end
            time.sleep(0.01)
    lease.next_token(run_dir, "supervisor-5")
    for driver in drivers:
        driver.join(60)
        assert driver.exitcode == 0
    published = [int(line) for line in out.read_text().split()]
    assert published == sorted(published)
    assert set(published) == {1, 2, 3, 4, 5}
