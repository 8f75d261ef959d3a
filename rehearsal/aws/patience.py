"""DescribeStacks that answers when the stack has settled: the cdk CLI asks only every five seconds."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs

from ministack.services import cloudformation

LONGEST_S = 4.0
"""An answer is never held back longer, so a long update still shows progress."""

_POLL_S = 0.05


def stack_of(body: bytes) -> str | None:
    """The stack that a DescribeStacks request names; None for every other request."""
    if b"Action=DescribeStacks" not in body:
        return None
    return parse_qs(body.decode("latin-1")).get("StackName", [None])[0]


async def until_settled(name_or_id: str) -> None:
    """Return when the stack of this request's account and region is not in progress, or after LONGEST_S."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LONGEST_S
    while _in_progress(name_or_id) and loop.time() < deadline:
        await asyncio.sleep(_POLL_S)


def _in_progress(name_or_id: str) -> bool:
    return any(
        str(stack.get("StackStatus", "")).endswith("_IN_PROGRESS")
        and stack["StackStatus"] != "REVIEW_IN_PROGRESS"  # waits for the caller, not for resources
        and name_or_id in (stack.get("StackName"), stack.get("StackId"))
        for stack in cloudformation._stacks.values()
    )
