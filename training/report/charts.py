"""Charts as inline SVG, coloured by the page's style sheet so that they follow light and dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

Point = tuple[float, float]
WIDTH = 720
LEFT, RIGHT, TOP, BOTTOM = 52, 118, 14, 34


@dataclass(frozen=True)
class Series:
    """Points (x, y) joined by a line and named at its end. `colour` is a class of the style sheet.

    `intervals` holds (low, high) for each point, drawn as whiskers; `dots` marks the points.
    """

    name: str
    colour: str
    points: Sequence[Point]
    intervals: Sequence[Point] = ()
    dots: bool = False


@dataclass(frozen=True)
class Level:
    """A dashed line across the chart."""

    name: str
    value: float


@dataclass
class Lines:
    """A line chart. With `logarithmic`, y is drawn by its decades and points of 0 or less are left out."""

    title: str
    x_label: str
    series: Sequence[Series]
    levels: Sequence[Level] = ()
    percent: bool = False
    logarithmic: bool = False
    height: int = 250
    width: int = WIDTH
    _xs: tuple[float, float] = field(init=False, default=(0, 1))
    _ys: tuple[float, float] = field(init=False, default=(0, 1))

    def svg(self) -> str:
        """The chart as one <svg> element."""
        shown = [
            [(x, y) for x, y in one.points if math.isfinite(y) and (y > 0 or not self.logarithmic)]
            for one in self.series
        ]
        self._set_ranges([point for points in shown for point in points])
        parts = [self._grid()]
        # The names at the lines' ends must not lie on each other.
        ends = [(self._y(level.value), f"{level.name}", "c-ceiling") for level in self.levels]
        for level in self.levels:
            y = self._y(level.value)
            parts.append(f'<path class="level" d="M{LEFT} {y:.1f}H{self.width - RIGHT}"/>')
        for one, points in zip(self.series, shown, strict=True):
            if not points:
                continue
            parts.append(self._line(one, points))
            ends.append((self._y(points[-1][1]), f"{one.name} {self._value(points[-1][1])}", one.colour))
        at = self.width - RIGHT + 8
        for y, text, colour in _spread(ends):
            parts.append(f'<text class="end {colour}" x="{at}" y="{y + 4:.1f}">{escape(text)}</text>')
        return (
            f'<svg class="chart" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(self.title)}">{"".join(parts)}</svg>'
        )

    def _set_ranges(self, points: Sequence[Point]) -> None:
        xs = [x for x, _ in points] or [0.0, 1.0]
        self._xs = (min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1)
        if self.percent:
            self._ys = (0.0, 1.0)
            return
        ys = [y for _, y in points] + [level.value for level in self.levels] or [1.0]
        if self.logarithmic:
            low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
            self._ys = (low, max(high, low + 1))
        else:
            self._ys = (0.0, max(ys) * 1.1 or 1.0)

    def _x(self, value: float) -> float:
        low, high = self._xs
        return LEFT + (value - low) / (high - low) * (self.width - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        low, high = self._ys
        at = math.log10(value) if self.logarithmic else value
        return self.height - BOTTOM - (at - low) / (high - low) * (self.height - TOP - BOTTOM)

    def _line(self, one: Series, points: Sequence[Point]) -> str:
        path = "L".join(f"{self._x(x):.1f} {self._y(y):.1f}" for x, y in points)
        parts = [f'<path class="line {one.colour}" d="M{path}"/>']
        for (x, _), (low, high) in zip(points, one.intervals, strict=False):
            path = f"M{self._x(x):.1f} {self._y(low):.1f}V{self._y(high):.1f}"
            parts.append(f'<path class="whisker {one.colour}" d="{path}"/>')
        if one.dots or len(points) == 1:
            parts += [
                f'<circle class="dot {one.colour}" cx="{self._x(x):.1f}" cy="{self._y(y):.1f}" r="3.5">'
                f"<title>{escape(one.name)}, {self.x_label} {x:g}: {self._value(y)}</title></circle>"
                for x, y in points
            ]
        return "".join(parts)

    def _grid(self) -> str:
        parts = []
        for value in self._ticks_y():
            y = self._y(value)
            parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{self.width - RIGHT}"/>')
            parts.append(f'<text class="tick y" x="{LEFT - 8}" y="{y + 4:.1f}">{self._value(value)}</text>')
        base = self.height - BOTTOM
        for value in ticks(*self._xs, 8, whole=True):
            parts.append(f'<text class="tick x" x="{self._x(value):.1f}" y="{base + 17}">{value:g}</text>')
        middle = (LEFT + self.width - RIGHT) / 2
        parts.append(f'<text class="tick x" x="{middle}" y="{self.height - 2}">{escape(self.x_label)}</text>')
        return "".join(parts)

    def _ticks_y(self) -> list[float]:
        if self.logarithmic:
            return [10.0**power for power in range(int(self._ys[0]), int(self._ys[1]) + 1)]
        return ticks(*self._ys, 5)

    def _value(self, value: float) -> str:
        if self.percent:
            return f"{value:.0%}"
        return power(value) if self.logarithmic else f"{value:.3g}"


@dataclass(frozen=True)
class Bar:
    """A share with its interval, and the share that no policy can pass."""

    name: str
    colour: str
    value: float
    low: float
    high: float
    ceiling: float


def intervals(bars: Sequence[Bar]) -> str:
    """Shares as dots with whiskers on one axis from 0 to 100 %, the ceiling of each as a dashed mark."""
    row, top, left, right = 38, 8, 130, 24
    height = top + row * len(bars) + 26

    def x(share: float) -> float:
        return left + share * (WIDTH - left - right)

    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path class="grid" d="M{x(share):.1f} {top}V{height - 22}"/>')
        parts.append(f'<text class="tick x" x="{x(share):.1f}" y="{height - 5}">{share:.0%}</text>')
    for at, bar in enumerate(bars):
        y = top + row * (at + 0.5)
        parts.append(f'<text class="name" x="{left - 14}" y="{y + 4}">{escape(bar.name)}</text>')
        parts.append(f'<path class="level" d="M{x(bar.ceiling):.1f} {y - 13}V{y + 13}"/>')
        parts.append(f'<path class="band {bar.colour}" d="M{x(bar.low):.1f} {y}H{x(bar.high):.1f}"/>')
        parts.append(f'<circle class="dot {bar.colour}" cx="{x(bar.value):.1f}" cy="{y}" r="6"/>')
        # The figure stands on the side where there is room for it.
        at_x, anchor = (x(bar.high) + 10, "start") if bar.high < 0.8 else (x(bar.low) - 10, "end")
        parts.append(
            f'<text class="figure" text-anchor="{anchor}" x="{at_x:.1f}" y="{y + 5}">{bar.value:.1%}</text>'
        )
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Solve rates with exact 95 % intervals">{"".join(parts)}</svg>'
    )


def ticks(low: float, high: float, at_most: int, whole: bool = False) -> list[float]:
    """Round values that cover low..high in steps of 1, 2 or 5 times a power of ten."""
    span = (high - low) / at_most
    power = 10.0 ** math.floor(math.log10(span))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span * (1 - 1e-9))
    if whole:
        step = max(1.0, step)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def power(value: float) -> str:
    """A value of 0 or more with two digits: 0.03, 10⁻⁴ or 2.7·10⁻⁷."""
    if value == 0 or value >= 1e-3:
        return f"{value:.2g}"
    digits, exponent = f"{value:.1e}".split("e")
    ten = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return ten if digits == "1.0" else f"{digits}·{ten}"


def _spread(ends: list[tuple[float, str, str]], gap: float = 15.0) -> list[tuple[float, str, str]]:
    """Moves labels down so that each has `gap` pixels of its own."""
    placed: list[tuple[float, str, str]] = []
    for y, text, colour in sorted(ends):
        if placed:
            y = max(y, placed[-1][0] + gap)
        placed.append((y, text, colour))
    return placed
