"""Takes back what was promoted: one change of the aliases, then what can wait.

It needs no lock of a promotion that runs: whoever knows an older version of the aliases is refused by them.
"""

from dataclasses import replace
from typing import Any

from serving import aliases as files
from serving.aliases import Aliases, ReplacedError
from serving.rollout import record as records
from serving.rollout.record import ROLL_BACK, ROLLED_BACK, Record
from serving.rollout.site import Site
from training.errors import ConfigError, DataError, SkypodError, SubstrateError

BASE = "base"


def roll_back(
    site: Site, to: str | None = None, reason: str = "by hand", taking: str | None = None
) -> Record:
    """End the canary if there is one; else let the previous adapter answer, or `to` (a name, or "base").

    Seconds, whatever a promotion is doing; that one then ends. Raises ConfigError when there is nothing to
    go back to, DataError for an adapter that never was live here or is not as it was. Without `to` it takes
    back what it finds at first, with `taking` that adapter: ReplacedError when another is in its place by
    then, which nobody wanted gone.
    """
    while True:
        current = files.read(site.aliases)
        target = _target(site, current, to)
        gone = current.canary if target["live"] == current.live else current.live
        if to is None:
            taking = taking or gone
        if taking not in (None, gone):
            raise ReplacedError(
                f"{taking} was taken back, but not by this rollback: {gone or BASE} is in its place",
                "look at `skypod adapters`, and roll back again if that shall go, too",
            )
        up = bool(site.destination.url)
        if up:  # What brings up a whole engine takes longer than a rollback may.
            _load(site, target["live"], needed=target["live"] != current.live)
        try:
            changed = files.change(site.aliases, current, **target)
            break
        except ReplacedError:
            continue  # a promotion went on in between: look again
    site.tell(f"{changed.live or BASE} answers all; {gone or BASE} was taken back: {reason}")
    last = records.newest(site.state)
    if last and not last.outcome and last.adapter in (current.canary, current.live):
        replace(last, failing=reason, outcome=ROLLED_BACK).save(site.state)
    record = records.begin(site.state, ROLL_BACK, gone, last.run if last else "", current)
    record = replace(record, known=changed, failing=reason, outcome=ROLLED_BACK).save(site.state)
    if not up:
        _load(site, changed.live, needed=False)
    site.publish(changed, next(name for name in (gone, changed.live) if name))
    _tell_doubts(site, changed)
    try:
        unloaded = site.retire(changed)
    except SubstrateError as error:
        site.tell(f"nothing was unloaded: {error.problem}")
        unloaded = []
    return record.done("retire", {"unloaded": unloaded}).save(site.state)


def _target(site: Site, current: Aliases, to: str | None) -> dict[str, Any]:
    """The aliases to change to."""
    none = {"canary": None, "canary_share": 0.0}
    if to is not None:
        name = None if to == BASE else to
        if name == current.live and not current.canary:
            raise ConfigError(f"{to} is live already", "nothing is to be done")
        if name and name not in (current.live, current.previous) and not _was_live(site, name):
            raise DataError(f"{name} never was live in {site.state}", f"promote it: `skypod promote {name}`")
        if name != current.live:
            return {"live": name, "previous": None, **none}
    if current.canary:
        last = records.newest(site.state, current.canary)
        return {"live": current.live, "previous": last.before.previous if last else None, **none}
    if current.previous is None:
        raise ConfigError(
            f"live is {current.live or BASE}, and nothing came before it",
            "name what shall answer: `skypod rollback --to base`, or an adapter of `skypod adapters`",
        )
    return {"live": current.previous, "previous": None, **none}


def _was_live(site: Site, name: str) -> bool:
    done = [one for one in records.read_all(site.state) if one.adapter == name and "full" in one.steps]
    return bool(done) and site.folder(name).is_dir()


def _load(site: Site, name: str | None, needed: bool) -> None:
    """What answered before is still loaded, unless the engine was started again; one that is down loads it
    when `skypod adapters watch` finds it up. One that the engine refuses is not `needed` where only a canary
    ends."""
    try:
        if name and name not in site.destination.loaded():
            site.load(name)
    except SkypodError as error:
        if needed and not isinstance(error, SubstrateError):
            raise
        site.tell(f"{name} could not be loaded: {error.problem}")


def _tell_doubts(site: Site, aliases: Aliases) -> None:
    """What stops no rollback, and a person should know."""
    try:
        if trouble := site.traffic.trouble(aliases):
            site.tell(trouble)
        if aliases.live:
            site.require_approved(aliases.live)
    except SkypodError as error:
        site.tell(error.problem)
