"""What came of every fault, held against what is promised for it."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rehearsal.drills.faults import FAULTS
from rehearsal.drills.run import Blow, Course
from rehearsal.drills.watching import Seen
from training import attempts, differences, lineage

Found = dict[str, Any]
NO_FAILURE = "none"
"""The class of what makes no attempt fail."""


def of_run(course: Course, run_dir: Path, reference: Path) -> Found:
    """A run's part of the report; `problems` are the promises that were broken."""
    ends = [*(blow.at for blow in course.blows[1:]), float("inf")]
    strikes = [of_blow(blow, course.seen, end) for blow, end in zip(course.blows, ends, strict=False)]
    problems = [f"{row['fault']} in {row['doing']}: {each}" for row in strikes for each in row["problems"]]
    problems += [f"{each.fault} in {each.phase} {each.step}: never struck" for each in course.missed]
    found = {"run": course.run, "seconds": course.seconds, "verdict": course.verdict, "strikes": strikes}
    if not course.finished:
        last_word = _first(reversed(course.seen), lambda one: one.is_("supervisor"))
        why = last_word.event["message"] if last_word else "its supervisor said nothing"
        problems.append(f"the run did not finish: {course.verdict}: {why}")
        return found | {"identical": False, "comparison": "not finished", "problems": problems}
    compared = differences.compare(reference, run_dir)
    if not compared.identical:
        problems.append(f"not the same run: {compared.words()}")
    if others := _other_plays(run_dir, reference):
        problems.append(f"not the same evaluations: {', '.join(others)}")
    return found | {
        "attempts": len(attempts.read(run_dir)),
        "unprovoked": _unprovoked(run_dir, strikes),
        "identical": compared.identical,
        "comparison": compared.words(),
        "problems": problems,
    }


def of_blow(blow: Blow, seen: Sequence[Seen], end: float = float("inf")) -> Found:
    """One fault's row. `seen` is what the run said in all; the next fault struck at `end`."""
    fault = FAULTS[blow.strike.fault]
    after = [one for one in seen if blow.at <= one.at < end]
    saved = {one.event["step"] for one in seen if one.at < blow.at and one.is_("checkpoint")}
    lost = sorted(saved & {one.event["step"] for one in after if one.is_("phase", name="rollout")})
    if fault.classes:
        noticed = _first(after, lambda one: one.is_("supervisor", what="failed", attempt=blow.attempt))
        recovered = _first(after, lambda one: noticed and _is_result(one, blow.attempt))
    else:
        # The next fault does not wait for the next supervisor.
        noticed = recovered = _first(
            seen, lambda one: one.at >= blow.at and one.is_("supervisor", what="adopted")
        )
    classified = ""
    if noticed:
        classified = noticed.event["message"].partition(":")[0] if fault.classes else NO_FAILURE
    problems = [blow.error] if blow.error else []
    expected = sorted(fault.classes) or [NO_FAILURE]
    if noticed is None:
        problems.append("the supervisor said nothing of it")
    elif classified not in expected:
        problems.append(f"classified as {classified}, not {' or '.join(expected)}")
    if recovered is None:
        problems.append("no step, evaluation or end came after it")
    if len(lost) > fault.may_lose:
        problems.append(f"finished steps {lost} were trained again")
    if fault.passes_over and not any(one.is_("passed_over") for one in after):
        problems.append("no checkpoint was passed over")
    return {
        "fault": blow.strike.fault,
        "phase": blow.strike.phase,
        "step": blow.strike.step,
        "doing": blow.doing,
        "attempt": blow.attempt,
        "finished_step": blow.finished_step,
        "detected_s": _since(blow, noticed),
        "classified": classified,
        "rto_s": _since(blow, recovered),
        "resumed_from": next((one.event["step"] for one in after if one.is_("resumed")), None),
        "lost_steps": len(lost),
        "problems": problems,
    }


def _first(seen: Iterable[Seen], is_it: Callable[[Seen], Any]) -> Seen | None:
    return next((one for one in seen if is_it(one)), None)


def _is_result(seen: Seen, attempt: int) -> bool:
    """Of an attempt after this one: something that it was started for."""
    return seen.event["event"] in ("step", "evaluation", "finished") and seen.event["attempt"] > attempt


def _since(blow: Blow, seen: Seen | None) -> float | None:
    return None if seen is None else round(seen.at - blow.at, 1)


def _unprovoked(run_dir: Path, strikes: Sequence[Found]) -> list[str]:
    """Attempts that failed though nothing had struck them: of what a busy machine does, or of a fault."""
    struck = {row["attempt"] for row in strikes}
    # What a person has to amend fails once more, until they have.
    struck |= {row["attempt"] + 1 for row in strikes if FAULTS[row["fault"]].amend}
    return [
        f"attempt {row['token']}: {row['failure']}: {row['message']}"
        for row in attempts.read(run_dir)
        if row.get("outcome") == "failed" and row["token"] not in struck
    ]


def _other_plays(run_dir: Path, reference: Path) -> list[str]:
    """The evaluations whose records, play by play, are not those of the reference."""
    mine, theirs = (lineage.read(folder)["evaluations"] for folder in (run_dir, reference))
    return sorted(
        label
        for label in {*mine, *theirs}
        if mine.get(label, {}).get("records") != theirs.get(label, {}).get("records")
    )


def summary(runs: Sequence[Found]) -> Found:
    """All faults of a campaign together."""
    strikes = [row for run in runs for row in run["strikes"]]
    return {
        "faults": len(strikes),
        "kinds": len({row["fault"] for row in strikes}),
        "lost_steps": sum(row["lost_steps"] for row in strikes),
        "runs": len(runs),
        "identical": sum(run["identical"] for run in runs),
        "problems": [f"{run['run']}: {problem}" for run in runs for problem in run["problems"]],
    }
