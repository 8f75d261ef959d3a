"""One place where adapters are served, with everything that knows of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from serving import manifest
from serving.adapter import Limits
from serving.aliases import Aliases
from serving.registry import Registry
from serving.rollout import record as records
from serving.rollout.destination import Destination
from serving.rollout.rules import Rules
from serving.rollout.traffic import Traffic
from training.errors import DataError, SkypodError, SubstrateError

ALIASES, ADAPTERS = "aliases.json", "adapters"


@dataclass
class Site:
    """`state` holds the aliases, which the gateway reads, the records, and the adapters, which the engine
    reads. Copies for other readers go where the registry keeps adapters.

    `tell` hears one line for a person at each step.
    """

    state: Path
    destination: Destination
    traffic: Traffic
    registry: Registry
    rules: Rules = field(default_factory=Rules)
    tell: Callable[[str], None] = lambda text: None

    @property
    def aliases(self) -> Path:
        return self.state / ALIASES

    def folder(self, name: str) -> Path:
        """An adapter's folder: written once, never removed."""
        return self.state / ADAPTERS / name

    def load(self, name: str) -> None:
        """Have the engine load an adapter. DataError when its folder is not as it was written."""
        manifest.read_folder(self.folder(name), Limits().max_bytes)
        self.destination.load(self.folder(name))

    def restore(self, aliases: Aliases) -> list[str]:
        """Load what the aliases name and the engine has lost, as it does when it is started again.

        Raises SubstrateError for one that cannot be loaded any more.
        """
        lost = sorted(aliases.names - self.destination.loaded())
        for name in lost:
            try:
                self.load(name)
            except DataError as error:
                raise SubstrateError(
                    f"{name} has an alias and cannot be loaded: {error.problem}",
                    f"see what is in {self.folder(name)}, or roll back to another adapter",
                ) from error
        return lost

    def retire(self, aliases: Aliases) -> list[str]:
        """Unload what rollouts loaded and no alias names any more, once nobody waits for it; what is gone.

        What stays busy, or is not unloaded, stays loaded until the next rollout or rollback. An adapter on
        its way up is left.
        """
        all_records = records.read_all(self.state)
        ended = {one.adapter for one in all_records if one.outcome or one.failing}
        rising = {one.adapter for one in all_records if not (one.outcome or one.failing)}
        gone = []
        for name in sorted((self.destination.loaded() & ended) - rising - aliases.names):
            try:
                if self._unload(name):
                    gone.append(name)
            except SkypodError as error:
                self.tell(f"{name} stays loaded: {error.problem}")
        return gone

    def _unload(self, name: str) -> bool:
        wait_s = self.rules.drain_s
        if self.traffic.released(name, wait_s) and self.destination.drain(name, wait_s):
            self.destination.unload(name)
            return True
        self.tell(f"{name} still has requests after {wait_s:g} s and stays loaded")
        return False

    def publish(self, aliases: Aliases, of: str) -> None:
        """Let the registry show the aliases, in the group of an adapter's base. The file is what counts, so a
        registry that does not answer stops nothing."""
        try:
            self.registry.point(self.base_of(of), aliases)
        except SkypodError as error:
            self.tell(f"the registry does not show the aliases yet: {error}")

    def require_approved(self, name: str) -> None:
        """DataError unless the registry lets an adapter of ours be served."""
        self.registry.require_approved(self.base_of(name), name)

    def base_of(self, name: str) -> str:
        """The digest of the base that an adapter was trained on."""
        path = self.folder(name) / manifest.MANIFEST
        try:
            return manifest.parse(path.read_bytes(), str(path)).base_digest
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror})", "restore the folder") from None
