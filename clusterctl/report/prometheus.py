"""Writes the status of runs for Prometheus: the text format of node_exporter's textfile collector.

Names, units and labels are an interface: docs/how-to/compare-runs.md lists them.
"""

from collections.abc import Iterator, Mapping, Sequence

from clusterctl.safe_text import strip_controls
from clusterctl.verbs.runs.run_state import NodeAnswer
from clusterctl.verbs.runs.run_status import RunStatus

_STATES = (
    "queued", "starting", "running", "hung", "stopping",
    "finished", "failed", "stopped", "lost", "unreachable",
)  # fmt: skip
_LABEL_CHARACTERS = 200

FAMILIES: Mapping[str, str] = {
    "clusterctl_run_state": "1 for the state that the run is in, 0 for the others",
    "clusterctl_run_began_timestamp_seconds": "When the run began",
    "clusterctl_run_ended_timestamp_seconds": "When the run was over",
    "clusterctl_run_step": "The step that the run printed last",
    "clusterctl_run_total_steps": "All steps of the run",
    "clusterctl_run_steps_per_second": "How many steps a second the run makes",
    "clusterctl_run_eta_seconds": "Seconds to the last step",
    "clusterctl_run_output_age_seconds": "Seconds since a rank printed a line",
    "clusterctl_run_checkpoint_timestamp_seconds": "When the newest checkpoint was written",
    "clusterctl_run_checkpoint_step": "The step of the newest checkpoint",
    "clusterctl_run_attempt": "Which attempt the run is in, or was the last",
    "clusterctl_run_false_alarms": "How often the run was reported as hung, and then continued",
    "clusterctl_run_stragglers": "Ranks that keep the others waiting",
    "clusterctl_node_up": "1 if the node answered, else 0",
    "clusterctl_node_ranks": "Ranks of the run on the node",
    "clusterctl_node_cpu_cores": "CPU cores that the run keeps busy on the node",
    "clusterctl_node_memory_bytes": "Memory of the run's processes on the node",
    "clusterctl_gpu_utilization_ratio": "How busy the GPU is: 0 to 1",
    "clusterctl_gpu_memory_used_bytes": "Memory in use on the GPU, by any process",
    "clusterctl_gpu_memory_total_bytes": "All memory of the GPU",
}
"""Every metric, and what it says; all are gauges."""

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float | None]


def prometheus(views: Sequence[RunStatus]) -> str:
    """Return the status of some runs as one text."""
    samples: dict[str, list[tuple[Labels, float]]] = {}
    for view in views:
        for name, labels, value in _of_run(view):
            if value is not None:
                samples.setdefault(name, []).append((labels, value))
    lines = []
    for name, meaning in FAMILIES.items():
        if name not in samples:
            continue
        lines += [f"# HELP {name} {meaning}.", f"# TYPE {name} gauge"]
        lines += [f"{name}{{{_labels(labels)}}} {value!r}" for labels, value in samples[name]]
    return "\n".join((*lines, ""))


def _of_run(view: RunStatus) -> Iterator[Sample]:
    run = (("cluster", view.cluster), ("run", view.run), ("name", view.name))
    for state in _STATES:
        yield "clusterctl_run_state", (*run, ("state", state)), float(view.state == state)
    pace, last, newest = view.pace, view.last_line, view.checkpoint
    numbers = {
        "began_timestamp_seconds": view.began,
        "ended_timestamp_seconds": view.ended,
        "step": pace.step if pace else None,
        "total_steps": pace.total if pace else None,
        "steps_per_second": pace.steps_per_s if pace and view.live else None,
        "eta_seconds": pace.eta_s if pace else None,
        "output_age_seconds": last.age_s if last and view.live else None,
        "checkpoint_timestamp_seconds": newest.time if newest else None,
        "checkpoint_step": newest.step if newest else None,
        "attempt": view.attempt,
        "false_alarms": view.false_alarms,
        "stragglers": len(view.stragglers) if view.live else None,
    }
    for name, value in numbers.items():
        yield f"clusterctl_run_{name}", run, _float(value)
    for answer in view.nodes:
        yield from _of_node(answer, (*run, ("node", answer.node.name)))


def _of_node(answer: NodeAnswer, node: Labels) -> Iterator[Sample]:
    yield "clusterctl_node_up", node, float(answer.error is None)
    yield "clusterctl_node_ranks", node, float(len(answer.ranks))
    usage = answer.node_run.usage if answer.node_run else None
    if usage is None:
        return
    cores = None if usage.cpu_percent is None else usage.cpu_percent / 100
    yield "clusterctl_node_cpu_cores", node, cores
    yield "clusterctl_node_memory_bytes", node, _float(usage.memory_bytes)
    for gpu in usage.gpus or ():
        labels = (*node, ("gpu", str(gpu.index)))
        busy = None if gpu.percent is None else gpu.percent / 100
        yield "clusterctl_gpu_utilization_ratio", labels, busy
        yield "clusterctl_gpu_memory_used_bytes", labels, _float(gpu.memory_used_bytes)
        yield "clusterctl_gpu_memory_total_bytes", labels, _float(gpu.memory_total_bytes)


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _labels(labels: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)


def _escaped(value: str) -> str:
    clean = strip_controls(" ".join(value.split("\n")))[:_LABEL_CHARACTERS]
    return clean.replace("\\", r"\\").replace('"', r"\"")
