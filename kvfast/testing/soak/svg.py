"""A line plot as SVG text, from nothing but the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

_WIDTH: Final = 640
_HEIGHT: Final = 320
_LEFT: Final = 70
_EDGE: Final = 40


def line_plot(points: Sequence[tuple[float, float]], title: str, x_name: str, y_name: str) -> str:
    """Return an SVG of a series; the y axis begins at zero, so that growth is seen at its true size."""
    x_most = max(x for x, _ in points) or 1.0
    y_most = 1.2 * max(y for _, y in points) or 1.0
    across, down = _WIDTH - _LEFT - _EDGE, _HEIGHT - 2 * _EDGE
    bottom = _HEIGHT - _EDGE
    path = " ".join(f"{_LEFT + x / x_most * across:.1f},{bottom - y / y_most * down:.1f}" for x, y in points)
    right = _WIDTH - _EDGE
    labels = [
        (_WIDTH / 2, 20, "middle", title),
        (right, _HEIGHT - 10, "end", f"{x_most:,.0f} {x_name}"),
        (_LEFT - 6, _EDGE, "end", f"{y_most:,.0f}"),
        (_LEFT - 6, bottom, "end", "0"),
        (_LEFT, _EDGE - 8, "start", y_name),
    ]
    texts = "".join(
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'
        for x, y, anchor, text in labels
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
        f'<path d="M{_LEFT},{_EDGE} V{bottom} H{right}" fill="none" stroke="black"/>'
        f'<polyline points="{path}" fill="none" stroke="#06c" stroke-width="2"/>{texts}</svg>\n'
    )
