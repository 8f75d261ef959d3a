"""A pod cut off from the network: two programs in the kernel drop every packet that it sends or is sent.

The pods of a rehearsal share the machine's loopback, so no interface can be taken from one of them. But each
can be started in a control group of its own (version 2), and the kernel asks a BPF program that is attached
there about every packet of its sockets. What a pod sends to itself is dropped, too.
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rehearsal.kube.containers import CGROUPS_ENV

_SYSCALL_BPF = {"x86_64": 321, "aarch64": 280}
_LOAD, _ATTACH = 5, 8
_CGROUP_SKB = 8
_INGRESS, _EGRESS = 0, 1
_DROP = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)
"""`r0 = 0; exit`: no packet passes."""


@contextmanager
def cuttable() -> Iterator[str]:
    """Have the pods of a substrate that starts in this block in groups of their own; why not, or ""."""
    root = _root()
    if root is None:
        yield "control groups of version 2 cannot be made here (needs root)"
        return
    os.environ[CGROUPS_ENV] = str(root)
    try:
        yield ""
    finally:
        del os.environ[CGROUPS_ENV]
        for group in [*root.iterdir(), root]:
            with suppress(OSError):  # one with a process in it is not removed
                group.rmdir()


def cut(pod_uid: str) -> None:
    """From now on, until the pod is gone. Raises OSError where the kernel refuses."""
    group = os.open(Path(os.environ[CGROUPS_ENV]) / pod_uid, os.O_RDONLY)
    try:
        program = _load()
        try:
            for direction in (_INGRESS, _EGRESS):
                _bpf(_ATTACH, struct.pack("<IIII", group, program, direction, 0))
        finally:
            os.close(program)  # the group holds it
    finally:
        os.close(group)


def _root() -> Path | None:
    for mounted in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        if Path(mounted, "cgroup.procs").exists() and Path(mounted, "cgroup.controllers").exists():
            root = Path(mounted, f"skypod-{os.getpid()}")
            with suppress(OSError):
                root.mkdir(exist_ok=True)
                os.close(_load())
                return root
    return None


def _load() -> int:
    instructions, licence = (
        ctypes.create_string_buffer(_DROP, len(_DROP)),
        ctypes.create_string_buffer(b"GPL"),
    )
    addresses = ctypes.addressof(instructions), ctypes.addressof(licence)
    return _bpf(_LOAD, struct.pack("<IIQQIIQ", _CGROUP_SKB, len(_DROP) // 8, *addresses, 0, 0, 0))


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYSCALL_BPF.get(os.uname().machine)
    if number is None:
        raise OSError(f"the number of bpf() on {os.uname().machine} is not known here")
    buffer = ctypes.create_string_buffer(attributes, 128)
    answer = ctypes.CDLL(None, use_errno=True).syscall(number, command, buffer, len(buffer))
    if answer < 0:
        raise OSError(ctypes.get_errno(), f"bpf() refuses: {os.strerror(ctypes.get_errno())}")
    return answer
