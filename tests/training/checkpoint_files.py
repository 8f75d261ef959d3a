"""Checkpoints for tests, and ways to damage them."""

from pathlib import Path

from training.checkpoints.store import Identity, Store

OWN = Identity(run="run-1", base="b" * 64)


def write(store: Store, step: int, content: bytes = b"weights") -> Path:
    with store.writing(step, {"seed": 7}) as folder:
        (folder / "adapter").mkdir()
        (folder / "adapter" / "a.safetensors").write_bytes(content + str(step).encode())
        (folder / "optimizer.safetensors").write_bytes(b"moments" * 10)
    return store.path(step)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")
