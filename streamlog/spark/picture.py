"""Counts over time as an SVG: stacked bars, an axis, a legend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

WIDTH, HEIGHT = 960, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 44, 44
BARS_MAX = 120
BANDS_MAX = 8
TICKS = 5
OTHERS = "others"
_COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#edc948", "#76b7b2", "#9c755f",
    "#bab0ac",
)  # fmt: skip


def bars(
    title: str,
    starts_ms: Sequence[int],
    series: Mapping[str, Sequence[int]],
    colours: Mapping[str, str] | None = None,
) -> str:
    """One bar for each start, one band of it for each name, the first lowest.

    More than BANDS_MAX names: the smallest are one band.
    """
    bands = _bands(series)
    totals = [sum(column) for column in zip(*bands.values(), strict=True)]
    top = _round_up(max(totals, default=0))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="16">{escape(title)}</text>',
        *_axes(starts_ms, top),
    ]
    width = (WIDTH - LEFT - RIGHT) / max(len(starts_ms), 1)
    base = [0.0] * len(starts_ms)
    for number, (name, counts) in enumerate(bands.items()):
        colour = (colours or {}).get(name, _COLOURS[number % len(_COLOURS)])
        lines.append(f'<g fill="{colour}"><title>{escape(name)}</title>')
        for at, count in enumerate(counts):
            if count:
                height = count * _plot_height() / top
                y = HEIGHT - BOTTOM - base[at] - height
                lines.append(
                    f'<rect x="{LEFT + at * width:.1f}" y="{y:.1f}" '
                    f'width="{max(width - 0.5, 0.5):.1f}" height="{height:.1f}"/>'
                )
                base[at] += height
        y = TOP + 18 * number
        x = WIDTH - RIGHT + 16
        lines.append(f'<rect x="{x}" y="{y}" width="12" height="12"/></g>')
        lines.append(f'<text x="{x + 18}" y="{y + 11}">{escape(name[:18])}</text>')
    return "\n".join((*lines, "</svg>", ""))


def utc_text(time_ms: int, shape: str) -> str:
    """`shape`: strftime's. Outside the years 1 to 9999 a time is a number, with its unit."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime(shape)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def _bands(series: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    if len(series) <= BANDS_MAX:
        return dict(series)
    largest = sorted(series, key=lambda name: -sum(series[name]))[: BANDS_MAX - 1]
    rest = [counts for name, counts in series.items() if name not in largest]
    kept: dict[str, Sequence[int]] = {name: series[name] for name in series if name in largest}
    return {**kept, OTHERS: [sum(column) for column in zip(*rest, strict=True)]}


def _plot_height() -> int:
    return HEIGHT - TOP - BOTTOM


def _round_up(count: int) -> int:
    """To a number that TICKS divide into plain ones."""
    unit = TICKS
    while unit < count:
        for factor in (1, 2, 4, 10):
            if unit * factor >= count:
                return unit * factor
        unit *= 10
    return unit


def _axes(starts_ms: Sequence[int], top: int) -> Iterator[str]:
    right = WIDTH - RIGHT
    for tick in range(TICKS + 1):
        y = HEIGHT - BOTTOM - _plot_height() * tick / TICKS
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>'
        yield (
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{top * tick // TICKS:,}</text>'
        )
    if not starts_ms:
        return
    is_long = starts_ms[-1] - starts_ms[0] >= 86_400_000
    shape = "%Y-%m-%d %H:%M" if is_long else "%H:%M"
    every = max(len(starts_ms) // TICKS, 1)
    width = (right - LEFT) / len(starts_ms)
    for number in range(0, len(starts_ms), every):
        text = utc_text(starts_ms[number], shape)
        x = LEFT + number * width
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}">{text}</text>'
    day = utc_text(starts_ms[0], "%Y-%m-%d")
    yield f'<text x="{LEFT}" y="{HEIGHT - 8}" fill="#777">from {day}, UTC</text>'
