"""What ends a rehearsal early, in order: Ctrl-C, `make stop`, or a terminal that is closed."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Handler = Callable[..., None] | signal.Handlers


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does, and so does an ignored SIGINT."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with _signals(interrupt):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A second Ctrl-C does not leave half of the clean-up undone."""
    with _signals(lambda *_: None):
        yield


@contextmanager
def _signals(handler: Callable[..., None]) -> Iterator[None]:
    """SIGHUP stays ignored where it was: that is what `nohup` is for."""
    # Asked now, because a terminal that is gone says that it is none.
    terminals = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def hung_up(*_: object) -> None:
        _silence(terminals)
        handler()

    handlers: dict[signal.Signals, Handler] = {signal.SIGINT: handler, signal.SIGTERM: handler}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = hung_up
    before = {kind: signal.signal(kind, each) for kind, each in handlers.items()}
    try:
        yield
    finally:
        for kind, former in before.items():
            signal.signal(kind, former)


def _silence(terminals: list[int]) -> None:
    """Writing to a terminal that is gone raises, which would cut the clean-up short."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in terminals:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
