"""The processes of a rehearsal, and what they listen on."""

import psutil

from rehearsal.substrate import MARK


def processes(run: str) -> list[psutil.Process]:
    """Those whose mark is, or begins with, the run id."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").split(" ")[0] == run:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def listening(run: str) -> set[tuple[str, str, int]]:
    """(process name, address, port) of every listening TCP socket of the run's processes."""
    found = set()
    for process in processes(run):
        try:
            for each in process.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    found.add((process.name(), each.laddr.ip, each.laddr.port))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def exposed(run: str) -> set[tuple[str, str, int]]:
    """Those that another machine could reach."""
    loopback = ("127.", "::1", "::ffff:127.")
    return {socket for socket in listening(run) if not socket[1].startswith(loopback)}
