"""Probes what is live on a timer, and takes it back when it no longer answers as it was trained."""

import threading
from collections.abc import Callable

from serving import aliases as files
from serving.aliases import Aliases, ReplacedError
from serving.rollout import record as records
from serving.rollout.candidate import Questions
from serving.rollout.record import Record
from serving.rollout.rollback import BASE, roll_back
from serving.rollout.site import Site
from training.errors import ConfigError, DataError, SkypodError, SubstrateError


def watch(
    site: Site, questions: Callable[[str], Questions], every_s: float, stop: threading.Event
) -> Record | None:
    """Probe until `stop`, or until something was taken back: then its record.

    `questions` gives those of an adapter. An engine that does not answer is told and asked again; one that
    was started again gets its adapters back.
    """
    while True:
        if taken_back := look(site, questions):
            return taken_back
        if stop.wait(every_s):
            return None


def look(site: Site, questions: Callable[[str], Questions]) -> Record | None:
    """One look: the record of a rollback if the live adapter failed its probe."""
    try:
        aliases = files.read(site.aliases)
    except SkypodError as error:
        site.tell(f"nothing was probed: {error.problem}")
        return None
    if aliases.live is None:
        site.tell("nothing is live")
        return None
    try:
        for name in site.restore(aliases):
            site.tell(f"{name} was lost and is loaded again")
        asked = questions(aliases.live)
    except SkypodError as error:  # which says nothing of the adapter
        site.tell(f"{aliases.live} was not probed: {error.problem}")
        return None
    try:
        found = asked.probe(site.destination, aliases.live)
        failures = "; ".join(found.failures)
    except SubstrateError as error:
        site.tell(f"no answer: {error.problem}")
        return None
    except DataError as error:  # the questions are at fault
        site.tell(f"{aliases.live} was not probed: {error.problem}")
        return None
    except ConfigError as error:
        failures = error.problem
    if not failures:
        site.tell(f"{aliases.live} answers as trained (gap {found.gap:.1e} nats)")
        return None
    try:
        return roll_back(site, _before(site, aliases), f"its probe failed: {failures}", taking=aliases.live)
    except (ReplacedError, ConfigError) as error:  # it was taken back while it was probed
        site.tell(error.problem)
        return None


def _before(site: Site, aliases: Aliases) -> str:
    """What was live before: the base, when that was nothing."""
    last = records.newest(site.state, aliases.live)
    return aliases.previous or (last.before.live if last else None) or BASE
