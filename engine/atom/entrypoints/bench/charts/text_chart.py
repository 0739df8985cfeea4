"""Draws a chart in characters, for a terminal or a log."""

from __future__ import annotations

from atom.entrypoints.bench.charts.chart import Chart, Series, ticks

_MARKS = ("●", "○", "+", "x")
_REFERENCE = "·"


def text_chart(chart: Chart, columns: int = 64, rows: int = 14) -> str:
    """Draw lines of text without colours: the title, the picture with its axes, and the legend."""
    cells = [[" "] * columns for _ in range(rows)]
    marked = [(line, _mark(chart, line)) for line in chart.series]
    for line, mark in reversed(marked):  # the first one is drawn last, and is seen
        for column, row in _places(chart, line, columns, rows):
            if 0 <= row < rows:
                cells[row][column] = mark
    labels = {_row(y, chart.most_y, rows): f"{y:g}" for y in ticks(chart.most_y)}
    width = max(map(len, labels.values()))
    body = [
        f"{labels.get(row, ''):>{width}} ┤{''.join(cells[row])}".rstrip() for row in range(rows)
    ]
    axis = [" "] * (columns + 8)
    for x in ticks(chart.most_x):
        text = f"{x:g}"
        start = _column(x, chart.most_x, columns) - len(text) // 2
        axis[max(0, start) : max(0, start) + len(text)] = text
    legend = "   ".join(f"{mark} {line.name}" for line, mark in marked)
    return "\n".join(
        [
            chart.title,
            chart.y_label,
            *body,
            f"{'':{width}} └{'─' * columns}",
            f"{'':{width}}  {''.join(axis)}".rstrip(),
            f"{'':{width}}  {chart.x_label}",
            legend,
        ]
    )


def _mark(chart: Chart, line: Series) -> str:
    own = [each for each in chart.series if not each.is_reference]
    return _REFERENCE if line.is_reference else _MARKS[own.index(line) % len(_MARKS)]


def _places(chart: Chart, line: Series, columns: int, rows: int) -> list[tuple[int, int]]:
    """Return the cells of a line: its points, and of one for comparison all columns between
    them."""
    points = list(line.points)
    if line.is_reference:
        points = [_between(line, chart.most_x * column / columns) for column in range(columns)]
    return [(_column(x, chart.most_x, columns), _row(y, chart.most_y, rows)) for x, y in points]


def _between(line: Series, x: float) -> tuple[float, float]:
    (x0, y0), (x1, y1) = line.points[0], line.points[-1]
    return x, y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _column(x: float, most: float, columns: int) -> int:
    return min(columns - 1, round(x / most * (columns - 1)))


def _row(y: float, most: float, rows: int) -> int:
    return rows - 1 - round(y / most * (rows - 1))
