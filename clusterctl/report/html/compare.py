"""A comparison of runs as a page: what differs, what came of it, and the curves on each other."""

from collections.abc import Callable, Mapping, Sequence

from clusterctl.checks.wording import size_of
from clusterctl.logs.metrics import Metrics
from clusterctl.report.compare import (
    commit_lines,
    difference_rows,
    gap_lines,
    result_rows,
    speedup_lines,
)
from clusterctl.report.html.frame import escaped, framed, page, table
from clusterctl.report.html.plot import line_plot
from clusterctl.verbs.compare.comparison import Comparison
from clusterctl.verbs.compare.story import Story

_CURVES: Mapping[str, tuple[str, Callable[[float], str], bool]] = {
    "loss": ("loss", "{:.4g}".format, False),
    "eval_loss": ("eval loss", "{:.4g}".format, False),
    "tokens_per_s": ("tokens/s, all ranks", "{:,.0f}".format, True),
    "seconds": ("seconds of a step", "{:.3g}".format, True),
    "memory_bytes": ("memory, the most of any rank", lambda value: size_of(int(value)), True),
}
"""What is plotted by step: its title, how a value is written, and whether the axis begins at 0."""


def compare_page(found: Comparison, stories: Sequence[Story]) -> str:
    """Return the comparison as one HTML document."""
    heads = [f"{one.name} ({one.short})" if one.name else one.short for one in found.runs]
    rows = [(title, *cells) for title, cells in difference_rows(found)]
    differs = table(("", *heads), rows) if rows else "<p>Nothing that is recorded differs.</p>\n"
    notes = [f"same: {found.all_same}"] if found.all_same else []
    faster = "".join(
        f'<p class="verdict">{escaped(line)}</p>\n'
        for line in speedup_lines(found.speedups, found.runs)
    )
    results = [(title, *cells) for title, cells in result_rows(found)]
    body = (
        f"{faster}<h2>What differs</h2>\n{differs}"
        + "".join(
            f"<p>{escaped(line)}</p>\n"
            for line in (*notes, *commit_lines(found), *gap_lines(found))
        )
        + f"<h2>What came of it</h2>\n{table(('', *heads), results)}"
        + plots({head: one.metrics for head, one in zip(heads, stories, strict=True)})
    )
    return page("clusterctl: runs compared", framed(body))


def plots(metrics: Mapping[str, Metrics]) -> str:
    """Return what runs recorded of their steps as plots, a curve a run."""
    found = [
        line_plot(title, {name: one.curve(field) for name, one in metrics.items()}, shape,
                  x_shape="step {:.0f}".format, zero=zero)
        for field, (title, shape, zero) in _CURVES.items()
    ]  # fmt: skip
    shown = "".join(found)
    return f"<h2>Steps</h2>\n{shown}" if shown else ""
