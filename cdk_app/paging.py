"""Listings of AWS, whole, whether botocore knows how to page them or not."""

from collections.abc import Iterator
from typing import Any


def pages(client: Any, operation: str, key: str, **params: Any) -> Iterator[Any]:
    """All items below `key` of a listing operation."""
    if not client.can_paginate(operation):
        yield from getattr(client, operation)(**params).get(key, [])
        return
    for page in client.get_paginator(operation).paginate(**params):
        yield from page.get(key, [])
