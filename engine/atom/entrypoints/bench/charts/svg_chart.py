"""Draws a chart as SVG: one file that shows the same in a browser, in Markdown and on paper.

It loads nothing, follows the reader's dark or light scheme, and names itself and every point for
screen readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from atom.entrypoints.bench.charts.chart import Chart, Series, ticks

_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 24, 56, 78
_COLOURS = 4
_CHARACTER = 8  # width of the legend's
_STYLE = """
  svg { background: #ffffff; color: #1c1c1c; font: 14px system-ui, sans-serif; }
  text { fill: currentColor; }
  .title { font-size: 16px; font-weight: 600; }
  .grid { stroke: currentColor; stroke-opacity: 0.15; }
  .line { fill: none; stroke-width: 2.5; }
  .reference { stroke: currentColor; stroke-width: 1; stroke-dasharray: 3 4; fill: none; }
  .c0 { stroke: #c8102e; fill: #c8102e; } .c1 { stroke: #1668b8; fill: #1668b8; }
  .c2 { stroke: #2c7a3f; fill: #2c7a3f; } .c3 { stroke: #8a5a00; fill: #8a5a00; }
  @media (prefers-color-scheme: dark) {
    svg { background: #16181d; color: #e8e8e8; }
    .c0 { stroke: #ff6b7d; fill: #ff6b7d; } .c1 { stroke: #6db3f2; fill: #6db3f2; }
    .c2 { stroke: #7ccf8f; fill: #7ccf8f; } .c3 { stroke: #e3b04b; fill: #e3b04b; }
  }
  path.line { fill: none; }
"""


def svg_chart(chart: Chart) -> str:
    legend = _places(chart)
    height = max(y for _, y in legend) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-labelledby="title" aria-describedby="desc">',
        f'<title id="title">{escape(chart.title)}</title>',
        f'<desc id="desc">{escape(_description(chart))}</desc>',
        f"<style>{_STYLE}</style>",
        '<clipPath id="plot"><rect '
        f'x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT - _RIGHT}" '
        f'height="{_HEIGHT - _TOP - _BOTTOM}"/></clipPath>',
        f'<text class="title" x="{_LEFT}" y="24">{escape(chart.title)}</text>',
        *_axes(chart),
        *_legend(chart, legend),
    ]
    for place, line in reversed(list(enumerate(chart.series))):
        parts += _line(chart, line, place)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _description(chart: Chart) -> str:
    lines = [
        f"{line.name}: " + ", ".join(f"{y:g} at {x:g}" for x, y in line.points)
        for line in chart.series
        if not line.is_reference
    ]
    return f"{chart.y_label} by {chart.x_label}. " + "; ".join(lines) + "."


def _axes(chart: Chart) -> list[str]:
    parts = []
    for y in ticks(chart.most_y):
        at = _y(chart, y)
        parts.append(
            f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>'
            f'<text x="{_LEFT - 8}" y="{at + 5:.1f}" text-anchor="end">{y:g}</text>'
        )
    for x in ticks(chart.most_x):
        at = _x(chart, x)
        parts.append(
            f'<path class="grid" d="M{at:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>'
            f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 20}" text-anchor="middle">{x:g}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle:.1f}" y="{_HEIGHT - _BOTTOM + 42}" text-anchor="middle">'
        f"{escape(chart.x_label)}</text>"
        f'<text x="{_LEFT}" y="{_TOP - 10}">{escape(chart.y_label)}</text>'
    )
    return parts


def _line(chart: Chart, line: Series, place: int) -> list[str]:
    path = "M" + "L".join(f"{_x(chart, x):.1f} {_y(chart, y):.1f}" for x, y in line.points)
    if line.is_reference:
        return [f'<path class="reference" clip-path="url(#plot)" d="{path}"/>']
    colour = f"c{place % _COLOURS}"
    return [
        f'<path class="line {colour}" d="{path}"/>',
        *(
            f'<circle class="{colour}" cx="{_x(chart, x):.1f}" cy="{_y(chart, y):.1f}" r="4">'
            f"<title>{escape(line.name)}: {y:g} at {x:g}</title></circle>"
            for x, y in line.points
        ),
    ]


def _places(chart: Chart) -> list[tuple[int, int]]:
    """Return where each entry of the legend begins: below the others if there is no room beside
    them."""
    places, x, y = [], _LEFT, _HEIGHT - 16
    for line in chart.series:
        width = 30 + _CHARACTER * len(line.name)
        if x > _LEFT and x + width > _WIDTH:
            x, y = _LEFT, y + 22
        places.append((x, y))
        x += width + 24
    return places


def _legend(chart: Chart, places: Sequence[tuple[int, int]]) -> list[str]:
    parts = []
    for place, (line, (x, y)) in enumerate(zip(chart.series, places, strict=True)):
        kind = "reference" if line.is_reference else f"line c{place % _COLOURS}"
        parts.append(
            f'<path class="{kind}" d="M{x} {y - 5}h24"/>'
            f'<text x="{x + 30}" y="{y}">{escape(line.name)}</text>'
        )
    return parts


def _x(chart: Chart, value: float) -> float:
    return _LEFT + value / chart.most_x * (_WIDTH - _LEFT - _RIGHT)


def _y(chart: Chart, value: float) -> float:
    return _HEIGHT - _BOTTOM - value / chart.most_y * (_HEIGHT - _TOP - _BOTTOM)
