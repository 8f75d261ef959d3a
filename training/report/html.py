"""Templates of self-contained pages, and how figures stand on them."""

import math
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from training.report import charts


@cache
def template(name: str) -> Template:
    """A template of `training/templates`; `style.css` is there for all of them to include."""
    environment = Environment(
        loader=PackageLoader("training", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "power": charts.power, "seconds": seconds, "short": short}
    return environment.get_template(name)


def encoded(page: str) -> bytes:
    """The bytes of a page; what UTF-8 cannot hold, such as half of a surrogate pair, stands as its escape."""
    return page.encode(errors="backslashreplace")


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def seconds(value: float) -> str:
    """Seconds as a person says them: 30 ms, 8.2 s, 2 min 05 s, 1 h 03 min."""
    if not math.isfinite(value):
        return "–"
    if value < 0.1:
        return f"{1000 * value:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def short(text: str) -> str:
    """A digest cut to what a person compares; the page holds the whole in a tooltip."""
    return text[:16] + "…" if len(text) == 64 and set(text) <= set("0123456789abcdef") else text
