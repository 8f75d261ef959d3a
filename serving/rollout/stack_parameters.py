"""Parameters of a CloudFormation stack that say what it serves."""

import threading
from collections.abc import Mapping
from time import monotonic
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from training.errors import SubstrateError

_POLL_S = 5.0
_UPDATED_S = 3600.0


class RolledBackError(SubstrateError):
    """The stack could not do as its parameters said, and is as it was before."""


class StackParameters:
    """Updates keep the template and every other parameter, and may change resources of `resource_type` only.

    SubstrateError where the stack cannot be read or changed.
    """

    def __init__(self, cloudformation: Any, stack: str, resource_type: str):
        self._cloudformation, self.stack = cloudformation, stack
        self._resource_type = resource_type

    def read(self) -> dict[str, str]:
        """Every parameter's value, once nothing changes the stack any more."""
        return {one["ParameterKey"]: one["ParameterValue"] for one in self._settled().get("Parameters", ())}

    def change(self, current: dict[str, str], values: dict[str, str]) -> None:
        """Give parameters these values, `current` being what was read, and wait for what comes of it; nothing
        to do where they have them.

        Raises RolledBackError with the reason when it fails and the stack is as before.
        """
        if current | values == current:
            return
        self._call(
            "update_stack",
            UsePreviousTemplate=True,
            Parameters=[
                *({"ParameterKey": key, "ParameterValue": value} for key, value in values.items()),
                *({"ParameterKey": key, "UsePreviousValue": True} for key in current if key not in values),
            ],
            Capabilities=["CAPABILITY_NAMED_IAM"],
            ResourceTypes=[self._resource_type],
        )
        status = self._settled()["StackStatus"]
        if status == "UPDATE_COMPLETE":
            return
        changed = ", ".join(f"{key} = {value!r}" for key, value in values.items())
        error = RolledBackError if status == "UPDATE_ROLLBACK_COMPLETE" else SubstrateError
        raise error(
            f"{self.stack} is {status} after {changed}: {self._reason()}",
            f"`cdk diagnose {self.stack} --unstable=diagnose` says more; what served before serves on",
        )

    def _settled(self) -> Mapping[str, Any]:
        deadline, pause = monotonic() + _UPDATED_S, threading.Event()
        while True:
            stack = self._call("describe_stacks")["Stacks"][0]
            if not stack["StackStatus"].endswith("_IN_PROGRESS"):
                return stack
            if monotonic() > deadline:
                raise SubstrateError(
                    f"{self.stack} is {stack['StackStatus']} for {_UPDATED_S:.0f} s",
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
            elif status == "UPDATE_IN_PROGRESS" and event["LogicalResourceId"] == self.stack:
                break
        return first

    def _call(self, operation: str, **options: Any) -> dict[str, Any]:
        try:
            return getattr(self._cloudformation, operation)(StackName=self.stack, **options)
        except (ClientError, BotoCoreError) as error:
            raise SubstrateError(
                f"{operation} of {self.stack}: {error}",
                "is it deployed, and have you the rights of docs/how-to/promote.md?",
            ) from error
