"""Pictures of every kind that clients send, good and bad."""

import base64
import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image


def noise(width: int, height: int, mode: str = "RGB") -> bytes:
    """A PNG that no compression makes small."""
    return _saved(_noise(width, height).convert(mode), "PNG")


def plain(width: int, height: int, seed: int) -> bytes:
    """A PNG of a few coloured squares, as small as a maze's."""
    squares = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    return _saved(Image.fromarray(squares).resize((width, height), Image.Resampling.NEAREST), "PNG")


def data_url(content: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return _saved(_noise(40, 24), "JPEG", exif=exif)


def _palette() -> bytes:
    image = _noise(32, 32).convert("P")
    return _saved(image, "PNG", transparency=3)


def _trailed() -> bytes:
    """A JPEG with bytes after its end, as some cameras leave them."""
    return _saved(_noise(32, 32), "JPEG") + b"trailer" * 9


GOOD: dict[str, Callable[[], bytes]] = {
    "png": lambda: noise(32, 32),
    "grey": lambda: noise(32, 32, "L"),
    "one bit": lambda: noise(32, 32, "1"),
    "alpha": lambda: noise(32, 32, "RGBA"),
    "palette": _palette,
    "16 bit": lambda: _saved(Image.fromarray(np.full((32, 32), 40_000, np.uint16)), "PNG"),
    "jpeg": lambda: _saved(_noise(32, 32), "JPEG"),
    "progressive jpeg": lambda: _saved(_noise(32, 32), "JPEG", progressive=True),
    "cmyk jpeg": lambda: _saved(_noise(32, 32).convert("CMYK"), "JPEG"),
    "turned jpeg": _turned,
    "trailed jpeg": _trailed,
    "webp": lambda: _saved(_noise(32, 32), "WEBP"),
    "webp alpha": lambda: _saved(_noise(32, 32).convert("RGBA"), "WEBP", lossless=True),
}


def _png(width: int, height: int, data: bytes = b"\0") -> bytes:
    """A PNG that claims a size; its pixels are the few that `data` holds."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def _webp_bomb() -> bytes:
    """A WebP of a few bytes with a canvas of 16383 x 16383."""
    content = bytearray(_saved(_noise(32, 32), "WEBP"))
    at = content.index(b"\x9d\x01\x2a") + 3
    content[at : at + 4] = struct.pack("<HH", 16383, 16383)
    return bytes(content)


def _animation(kind: str) -> bytes:
    frames = [_noise(32, 32).rotate(90 * turns) for turns in range(3)]
    return _saved(frames[0], kind, save_all=True, append_images=frames[1:])


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def _cut(kind: str) -> bytes:
    content = _saved(_noise(64, 64), kind)
    return content[: len(content) * 2 // 3]


def _many_scans() -> bytes:
    content = _saved(_noise(64, 64), "JPEG", progressive=True)
    return content.replace(b"\xff\xda", b"\xff\xda" * 20, 10)


_BAD, _LARGE = (400, "bad_image"), (413, "image_too_large")
BAD: dict[str, tuple[Callable[[], str], int, str]] = {
    name: (make, *expected)
    for name, make, expected in (
        ("png bomb", lambda: data_url(_png(60_000, 60_000)), _LARGE),
        ("png of more pixels", lambda: data_url(_png(1001, 1000)), _LARGE),
        ("webp bomb", lambda: data_url(_webp_bomb(), "webp"), _LARGE),
        ("too many bytes", lambda: data_url(noise(400, 400)), _LARGE),
        ("too thin", lambda: data_url(_png(5000, 2)), _BAD),
        ("no width", lambda: data_url(_png(0, 32)), _BAD),
        ("cut png", lambda: data_url(_cut("PNG")), _BAD),
        ("cut jpeg", lambda: data_url(_cut("JPEG"), "jpeg"), _BAD),
        ("cut webp", lambda: data_url(_cut("WEBP"), "webp"), _BAD),
        ("damaged png", lambda: data_url(_flipped(noise(64, 64))), _BAD),
        ("jpeg of many scans", lambda: data_url(_many_scans(), "jpeg"), _BAD),
        ("moving webp", lambda: data_url(_animation("WEBP"), "webp"), _BAD),
        ("moving png", lambda: data_url(_animation("PNG")), _BAD),
        ("gif", lambda: data_url(_saved(_noise(32, 32), "GIF")), _BAD),
        ("gif by its name", lambda: data_url(_saved(_noise(32, 32), "GIF"), "gif"), _BAD),
        ("svg", lambda: data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "svg+xml"), _BAD),
        ("text", lambda: data_url(b"hello"), _BAD),
        ("nothing", lambda: data_url(b""), _BAD),
        ("broken base64", lambda: "data:image/png;base64,A?==", _BAD),
        ("half a base64 digit", lambda: "data:image/png;base64,A", _BAD),
        ("not ASCII", lambda: "data:image/png;base64,ééé", _BAD),
        ("no base64", lambda: "data:image/png,abc", _BAD),
        ("an address", lambda: "http://169.254.169.254/latest/meta-data/", _BAD),
        ("a file", lambda: "file:///etc/passwd", _BAD),
        ("a lone surrogate", lambda: "\ud800", _BAD),
    )
}
