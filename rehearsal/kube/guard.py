"""One object's trouble must not keep the controllers from the others."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from kubernetes.client.exceptions import ApiException


@contextmanager
def guarded(log: logging.Logger, what: str) -> Iterator[None]:
    """Log what goes wrong inside and carry on; the next pass tries again."""
    try:
        yield
    except ApiException as error:
        # Mostly a race with a client's own change.
        log.warning("%s: %s %s", what, error.status, error.body)
    except Exception:
        log.exception("%s", what)
