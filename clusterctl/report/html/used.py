"""What the nodes of a run used over time, as plots: GPUs, CPUs, memory, network."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from clusterctl.checks.wording import size_of
from clusterctl.model.samples import Samples
from clusterctl.report.html.plot import line_plot
from clusterctl.report.lines import duration
from clusterctl.verbs.compare.story import Story

_MOST = 4
"""Nodes with a curve of their own: those that used least, which may be why others waited."""
Values = Sequence[float | None]


def _mean_of(columns: Sequence[Values]) -> Values:
    """Return the mean of several columns for each time."""
    rows = ([one for one in row if one is not None] for row in zip(*columns, strict=True))
    return [fmean(row) if row else None for row in rows]


def _gpus(node: Samples) -> Values:
    return _mean_of([gpu.percent for gpu in node.gpus if gpu.percent])


def _gpu_memory(node: Samples) -> Values:
    return _mean_of([gpu.memory_used_bytes for gpu in node.gpus if gpu.memory_used_bytes])


def _network(node: Samples) -> Values:
    if not (node.receive_bytes_s and node.rdma_receive_bytes_s):
        return node.receive_bytes_s or node.rdma_receive_bytes_s
    both = zip(node.receive_bytes_s, node.rdma_receive_bytes_s, strict=True)
    return [(a or 0.0) + (b or 0.0) for a, b in both]


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def _bytes(value: float) -> str:
    return size_of(int(value))


def _rate(value: float) -> str:
    return f"{size_of(int(value))}/s"


_PLOTS: Mapping[str, tuple[Callable[[Samples], Values], Callable[[float], str]]] = {
    "GPU use, mean of the node": (_gpus, _percent),
    "GPU memory, mean of the node": (_gpu_memory, _bytes),
    "CPU use of the node, 100 % is a core": (lambda node: node.cpu_percent, _percent),
    "memory of the node": (lambda node: node.memory_bytes, _bytes),
    "received from the network": (_network, _rate),
}


def used(story: Story) -> str:
    """Return the plots with their title; empty if nothing was sampled."""
    began = story.one.line.began or 0.0
    shown = []
    for title, (read, shape) in _PLOTS.items():
        curves = {
            name: [
                (time - began, value)
                for time, value in zip(node.time, read(node) or (), strict=False)
                if value is not None
            ]
            for name, node in sorted(story.samples.items())
        }
        curves = {name: curve for name, curve in curves.items() if curve}
        least = sorted(curves, key=lambda name: fmean(value for _, value in curves[name]))[:_MOST]
        some = f" ({_MOST} of {len(curves)} nodes: the lowest)" if len(curves) > _MOST else ""
        chosen = {name: curves[name] for name in curves if name in least}
        shown.append(line_plot(title + some, chosen, shape, x_shape=duration, zero=True))
    found = "".join(shown)
    return f"<h2>What the nodes used</h2>\n{found}" if found else ""
