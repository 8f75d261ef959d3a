"""The custom-resource protocol: run the work, and tell CloudFormation how it went whatever happens."""

import json
import traceback
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# CloudFormation cuts longer reasons off, and a response above 4 KiB is refused.
_LONGEST_REASON = 1_500


@dataclass(frozen=True)
class Done:
    """What a resource is called, and the attributes that templates may read from it."""

    physical_id: str
    data: dict[str, str] = field(default_factory=dict)


class Postponed(Exception):
    """The work goes on in another invocation, which will answer."""


def answer(event: dict[str, Any], context: Any, work: Callable[[dict[str, Any], Any], Done]) -> None:
    """Call `work` and send its result, or its exception as the reason of the failure."""
    try:
        done = work(event, context)
    except Postponed:
        return
    except Exception as error:  # the stack would otherwise wait for an hour
        traceback.print_exc()
        physical_id = event.get("PhysicalResourceId") or f"failed-{event['RequestId']}"
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        _send(event, {"Status": "FAILED", "Reason": reason, "PhysicalResourceId": physical_id, "Data": {}})
        return
    _send(event, {"Status": "SUCCESS", "PhysicalResourceId": done.physical_id, "Data": done.data})


def _send(event: dict[str, Any], body: dict[str, Any]) -> None:
    body |= {key: event[key] for key in ("StackId", "RequestId", "LogicalResourceId")}
    request = urllib.request.Request(  # noqa: S310 - the address comes from CloudFormation
        event["ResponseURL"],
        data=json.dumps(body).encode(),
        method="PUT",
        headers={"Content-Type": ""},
    )
    urllib.request.urlopen(request, timeout=30).close()  # noqa: S310
