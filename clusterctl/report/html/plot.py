"""A line plot as inline SVG: a few curves over the same axes."""

import math
from collections.abc import Callable, Mapping, Sequence

from clusterctl.report.html.frame import escaped

Curve = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT = 480, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 10, 10, 26
_MOST = 600
"""Points of a curve: a screen has no more."""
_COLORS = 4


def line_plot(
    title: str,
    curves: Mapping[str, Curve],
    shape: Callable[[float], str] = "{:g}".format,
    *,
    x_shape: Callable[[float], str] = "{:g}".format,
    zero: bool = False,
) -> str:
    """Return the plot with its title; empty if no curve has two points.

    Args:
        curves: by the names of the runs; those beyond the colors repeat them, with dashes.
    """
    shown = {
        name: [(x, y) for x, y in curve if math.isfinite(x) and math.isfinite(y)]
        for name, curve in curves.items()
    }
    shown = {name: curve for name, curve in shown.items() if len(curve) > 1}
    if not shown:
        return ""
    xs = [x for curve in shown.values() for x, _ in curve]
    ys = [y for curve in shown.values() for _, y in curve]
    left, right, low, high = min(xs), max(xs), 0.0 if zero else min(ys), max(ys)
    if high <= low:
        low, high = low - 0.5, low + 0.5

    def place(x: float, y: float) -> str:
        across = (x - left) / (right - left or 1) * (_WIDTH - _LEFT - _RIGHT)
        down = (high - y) / (high - low or 1) * (_HEIGHT - _TOP - _BOTTOM)
        return f"{_LEFT + across:.1f},{_TOP + down:.1f}"

    base, edge = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    lines, legend = [], []
    for number, name in enumerate(curves):
        dash = ' stroke-dasharray="6 3"' if number >= _COLORS else ""
        look = f'class="line{number % _COLORS}"{dash}'
        if name in shown:
            points = " ".join(place(x, y) for x, y in thinned(shown[name]))
            lines.append(f'<polyline {look} points="{points}"/>')
            sample = f'<svg viewBox="0 0 24 8" style="width:24px;display:inline">{_SAMPLE % look}'
            legend.append(f"{sample}</svg> {escaped(name)}")
    summary = f"{title}: {shape(ys[0])} to {shape(ys[-1])}" if len(shown) == 1 else title
    return (
        f"<h3>{escaped(title)}</h3>\n"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{escaped(summary)}</title>'
        f'<path class="axis" fill="none" d="M{_LEFT} {_TOP}V{base}H{edge}"/>'
        f'<text x="{_LEFT - 6}" y="{_TOP + 10}" text-anchor="end">{escaped(shape(high))}</text>'
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">{escaped(shape(low))}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{escaped(x_shape(left))}</text>'
        f'<text x="{edge}" y="{_HEIGHT - 8}" text-anchor="end">{escaped(x_shape(right))}</text>'
        f"{''.join(lines)}</svg>\n"
        + (f"<p>{' &nbsp; '.join(legend)}</p>\n" if len(curves) > 1 else "")
    )


_SAMPLE = '<polyline %s points="0,4 24,4"/>'


def thinned(curve: Curve) -> Curve:
    """Return the least and the greatest point of each part of a curve: no peak is lost."""
    if len(curve) <= _MOST:
        return curve
    size = math.ceil(len(curve) / (_MOST // 2))
    parts = (curve[at : at + size] for at in range(0, len(curve), size))
    ends = ({min(part, key=_value), max(part, key=_value)} for part in parts)
    return [point for pair in ends for point in sorted(pair)]


def _value(point: tuple[float, float]) -> float:
    return point[1]
