"""Parameters of a CloudFormation stack that each name an adapter, or are empty."""

import threading
from collections.abc import Mapping
from time import monotonic
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from training.errors import ConfigError, DataError, SubstrateError

_POLL_S = 5.0
_UPDATED_S = 3600.0


class StackSlots:
    """`slot` is how the parameters' names begin. Only an empty one is filled: the stack would put the new
    adapter in the old one's place under the old one's name.

    Updates keep the template and every other parameter, and may change resources of `resource_type` only,
    which is all that the policy of those who promote permits.
    """

    def __init__(self, cloudformation: Any, stack: str, slot: str, resource_type: str):
        self._cloudformation, self._stack = cloudformation, stack
        self._slot, self._resource_type = slot, resource_type

    def fill(self, name: str) -> None:
        """Have the stack make an adapter, and wait for it; nothing to do when a parameter names it.

        DataError when that fails and the stack is as before, ConfigError when no parameter is empty.
        """
        stack = self._settled()
        held = self._held(stack)
        if name in held.values():
            return
        empty = next((parameter for parameter, value in held.items() if not value), None)
        if empty is None:
            raise ConfigError(
                f"{self._stack} has no room for {name}: {', '.join(held.values()) or 'no parameter'}",
                "raise serving.max_adapters and deploy, or empty a parameter by a deploy",
            )
        self._change(stack, empty, name)

    def clear(self, name: str) -> None:
        """Have the stack remove an adapter, and wait for it; nothing to do where no parameter names it."""
        stack = self._settled()
        for parameter, value in self._held(stack).items():
            if value == name:
                self._change(stack, parameter, "")

    def _held(self, stack: Mapping[str, Any]) -> dict[str, str]:
        """What each slot names."""
        found = {one["ParameterKey"]: one["ParameterValue"] for one in stack.get("Parameters", ())}
        return {
            key: found[key] for key in sorted(found, key=lambda k: (len(k), k)) if key.startswith(self._slot)
        }

    def _change(self, stack: Mapping[str, Any], parameter: str, value: str) -> None:
        others = [one["ParameterKey"] for one in stack["Parameters"]]
        self._call(
            "update_stack",
            UsePreviousTemplate=True,
            Parameters=[
                {"ParameterKey": parameter, "ParameterValue": value},
                *({"ParameterKey": key, "UsePreviousValue": True} for key in others if key != parameter),
            ],
            Capabilities=["CAPABILITY_NAMED_IAM"],
            ResourceTypes=[self._resource_type],
        )
        status = self._settled()["StackStatus"]
        if status == "UPDATE_COMPLETE":
            return
        problem = f"{self._stack} is {status} after {parameter} = {value!r}: {self._reason()}"
        remedy = f"`cdk diagnose {self._stack} --unstable=diagnose` says more; the other adapters serve on"
        if status == "UPDATE_ROLLBACK_COMPLETE":
            raise DataError(problem, remedy)
        raise SubstrateError(problem, remedy)

    def _settled(self) -> Mapping[str, Any]:
        """The stack, once nothing changes it any more."""
        deadline, pause = monotonic() + _UPDATED_S, threading.Event()
        while True:
            stack = self._call("describe_stacks")["Stacks"][0]
            if not stack["StackStatus"].endswith("_IN_PROGRESS"):
                return stack
            if monotonic() > deadline:
                raise SubstrateError(
                    f"{self._stack} is {stack['StackStatus']} for {_UPDATED_S:.0f} s",
                    "wait until it has ended, then start again",
                )
            pause.wait(_POLL_S)

    def _reason(self) -> str:
        """Of the failures since the last update began the first: it has made the others."""
        first = "no reason is given"
        for event in self._call("describe_stack_events")["StackEvents"]:
            status = event["ResourceStatus"]
            if status.endswith("_FAILED"):
                first = event.get("ResourceStatusReason", first)
            elif status == "UPDATE_IN_PROGRESS" and event["LogicalResourceId"] == self._stack:
                break
        return first

    def _call(self, operation: str, **options: Any) -> dict[str, Any]:
        try:
            return getattr(self._cloudformation, operation)(StackName=self._stack, **options)
        except (ClientError, BotoCoreError) as error:
            raise SubstrateError(
                f"{operation} of {self._stack}: {error}",
                "is it deployed, and have you the rights of docs/how-to/promote.md?",
            ) from error
