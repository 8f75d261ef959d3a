"""Parameters of a stack that each name an adapter, or are empty."""

from serving.rollout.stack_parameters import RolledBackError, StackParameters
from training.errors import ConfigError, DataError


class StackSlots:
    """`slot` is how the parameters' names begin. Only an empty one is filled: the stack would put the new
    adapter in the old one's place under the old one's name.
    """

    def __init__(self, parameters: StackParameters, slot: str):
        self._parameters, self._slot = parameters, slot

    def fill(self, name: str) -> None:
        """Have the stack make an adapter, and wait for it; nothing to do when a parameter names it.

        DataError when that fails and the stack is as before, ConfigError when no parameter is empty.
        """
        current = self._parameters.read()
        held = self._held(current)
        if name in held.values():
            return
        empty = next((parameter for parameter, value in held.items() if not value), None)
        if empty is None:
            raise ConfigError(
                f"{self._parameters.stack} has no room for {name}: "
                f"{', '.join(held.values()) or 'no parameter'}",
                "raise serving.max_adapters and deploy, or empty a parameter by a deploy",
            )
        self._change(current, empty, name)

    def clear(self, name: str) -> None:
        """Have the stack remove an adapter, and wait for it; nothing to do where no parameter names it."""
        current = self._parameters.read()
        for parameter, value in self._held(current).items():
            if value == name:
                self._change(current, parameter, "")

    def _held(self, found: dict[str, str]) -> dict[str, str]:
        """What each slot names."""
        return {
            key: found[key] for key in sorted(found, key=lambda k: (len(k), k)) if key.startswith(self._slot)
        }

    def _change(self, current: dict[str, str], parameter: str, value: str) -> None:
        try:
            self._parameters.change(current, {parameter: value})
        except RolledBackError as error:
            raise DataError(error.problem, error.remedy) from error
