"""From the model that a request names to the adapter that answers it."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from serving.aliases import ALIASES, Aliases, served_name
from serving.gateway.following import Followed
from serving.gateway.keys import Key, require
from serving.gateway.metrics import BASE
from serving.gateway.refusal import Refusal

# These names reach paths and S3 keys: Ray Serve LLM loads an adapter from <folder>/<name> when asked for it.
_ADAPTER = re.compile(r"[a-z][a-z0-9-]{0,40}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Route:
    """`adapter` is None for the base, `served` its name at the engine; `variant` tells why it was chosen:
    live or canary for the public name, named for a probe."""

    adapter: str | None
    variant: str
    served: str

    @property
    def label(self) -> str:
        """What metrics, log and answers call it."""
        return self.adapter or BASE


class Router:
    """Knows the public name, the engine's name for the base, and the aliases of the moment.

    `<public>@live`, `@canary`, `@previous` and `@base`, and an adapter's own or served name, are for keys
    that may probe.
    """

    def __init__(self, public: str, model_id: str, aliases: Followed[Aliases]):
        self._public = public
        self._model_id = model_id
        self._aliases = aliases

    def route(self, model: str, key: Key, conversation: Callable[[], str]) -> Route:
        """The route of a request; `conversation` names what has to stay with one adapter.

        Refuses unknown names (404), names that the key may not use (403), aliases that nobody holds (503).
        """
        aliases = self._aliases.value
        if model == self._public:
            adapter, variant = aliases.live, "live"
            if aliases.canary and _share(aliases.canary, conversation, aliases.canary_share):
                adapter, variant = aliases.canary, "canary"
            if adapter is None:
                raise Refusal(
                    503, "no_live_adapter", f"no adapter is live behind {self._public}", "promote one"
                )
            return self._to(adapter, variant)
        public, _, alias = model.partition("@")
        adapter: str | None = model.removeprefix(f"{self._model_id}:")
        by_alias = public == self._public and alias in (BASE, *ALIASES)
        # Before anything is looked up: a refusal must not tell those who may not probe what is up.
        if by_alias or model == self._model_id or _ADAPTER.fullmatch(adapter):
            require(key, "probe")
        elif "probe" not in key.may or adapter not in aliases.names:
            raise Refusal(
                404, "model_not_found", "this model does not exist", "ask /v1/models for those that do"
            )
        if model == self._model_id or (by_alias and alias == BASE):
            adapter = None
        elif by_alias:
            adapter = getattr(aliases, alias)
            if adapter is None:
                raise Refusal(503, f"no_{alias}_adapter", f"no adapter is {alias}", "promote one")
        return self._to(adapter, "named")

    def models(self, key: Key) -> list[str]:
        """The names that a key may use."""
        names = [self._public]
        if "probe" in key.may:
            aliases = self._aliases.value
            held = [alias for alias in ALIASES if getattr(aliases, alias)]
            names += [f"{self._public}@{alias}" for alias in (BASE, *held)]
            names += [served_name(self._model_id, name) for name in sorted(aliases.names)]
        return names

    def _to(self, adapter: str | None, variant: str) -> Route:
        return Route(adapter, variant, served_name(self._model_id, adapter))


def _share(canary: str, conversation: Callable[[], str], share: float) -> bool:
    """Whether a conversation falls into the canary's share.

    Those of a small share are among those of a larger one, so raising it moves nobody back; another canary
    gets another sample.
    """
    if share in (0, 1):
        return share == 1
    digest = hashlib.sha256(f"{canary}\0{conversation()}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) < share * 2**64
