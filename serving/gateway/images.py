"""Pictures of a request, judged by their headers: nothing is decoded here, and nothing is fetched.

What passes goes to the engine as it came. The engine applies EXIF orientation and palettes, and puts a white
ground under transparency (vLLM 0.30.0, multimodal/media/image.py).
"""

import base64
import binascii
import hashlib
import io
import re
from collections import OrderedDict

from PIL import Image

from serving.gateway.refusal import Refusal
from serving.gateway.settings import Limits

_DATA_URL = re.compile(r"data:image/(?:png|jpe?g|webp);base64,", re.IGNORECASE)
_FORMATS = ("PNG", "JPEG", "WEBP")
# Beyond this ratio of sides Qwen's image processor raises.
_MOST_ASPECT = 200
# libjpeg works through the whole picture for each scan of a progressive JPEG, and a scan takes few bytes.
_MOST_SCANS = 64
_SCAN, _END = b"\xff\xda", b"\xff\xd9"
# A conversation sends its old pictures with every turn.
_REMEMBERED = 4096


class Images:
    """Checks pictures; those that passed lately are known by digest and pass at once."""

    def __init__(self, limits: Limits):
        self._limits = limits
        # Large bodies are checked in threads; each call on it is one step.
        self._passed: OrderedDict[bytes, None] = OrderedDict()

    def check(self, url: str) -> None:
        """Refuses (400, 413) whatever is not one whole picture of a permitted size in a data URL."""
        known = hashlib.sha256(url.encode("utf-8", "surrogatepass")).digest()
        if known not in self._passed:
            self._look(url)
            self._passed[known] = None
            if len(self._passed) > _REMEMBERED:
                self._passed.popitem(last=False)

    def _look(self, url: str) -> None:
        prefix = _DATA_URL.match(url)
        if not prefix:
            raise _refused("it is no PNG, JPEG or WebP in a base64 data URL", "addresses are not fetched")
        encoded = url[prefix.end() :]
        if len(encoded) * 3 // 4 > self._limits.image_bytes + 2:
            raise Refusal(
                413,
                "image_too_large",
                f"a picture has more than {self._limits.image_bytes} bytes",
                "send a smaller one",
            )
        try:
            content = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise _refused("its base64 is broken") from None
        try:
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                self._check_size(*image.size)
                frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
                if image.format == "PNG":
                    image.verify()
        except Image.DecompressionBombError:
            raise self._too_many_pixels() from None
        except Refusal:
            raise
        except Exception:  # Pillow's parsers raise whatever a broken file leads them to.
            raise _refused("it is damaged or truncated") from None
        if frames > 1:
            raise _refused(f"it is an animation of {frames} frames", "send one frame")
        if content.startswith(b"\xff\xd8"):
            _check_jpeg(content)

    def _check_size(self, width: int, height: int) -> None:
        if width * height > self._limits.image_pixels:
            raise self._too_many_pixels()
        if max(width, height) > _MOST_ASPECT * min(width, height):
            raise _refused(f"its sides are {width} and {height} pixels", f"keep them within 1:{_MOST_ASPECT}")

    def _too_many_pixels(self) -> Refusal:
        return Refusal(
            413,
            "image_too_large",
            f"a picture has more than {self._limits.image_pixels} pixels",
            "send a smaller one",
        )


def _check_jpeg(content: bytes) -> None:
    """Scan data escape their 0xff, so the two markers are real ones there; Pillow looks at neither."""
    if content.count(_SCAN) > _MOST_SCANS:
        raise _refused(f"it is a JPEG of more than {_MOST_SCANS} scans", "save it again")
    if content.find(_END, content.rfind(_SCAN)) < 0:
        raise _refused("it is damaged or truncated")


def _refused(reason: str, remedy: str = "") -> Refusal:
    return Refusal(400, "bad_image", f"a picture cannot be taken: {reason}", remedy)
