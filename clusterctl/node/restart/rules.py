"""What follows from each kind of cause: whether a run is started again, how often, and where."""

from __future__ import annotations

from typing import Dict, NamedTuple

FRUITLESS = 3
"""Restarts in a row without a newer checkpoint, after which a run ends."""


class Rule(NamedTuple):
    """What follows from a kind of cause."""

    action: str
    words: str
    """What happened, for people."""
    budget: int = FRUITLESS
    """Restarts for such a cause until a newer checkpoint is there."""
    repeats: bool = False
    """The program's own doing: the same at the same step twice would come a third time."""


def _each(causes: Dict[str, str], action: str, budget: int = FRUITLESS) -> Dict[str, Rule]:
    """Return the rules of kinds of causes; such with a budget of their own are the program's."""
    repeats = budget != FRUITLESS
    return {kind: Rule(action, words, budget, repeats) for kind, words in causes.items()}


_PACKAGE = "a package is missing or does not fit"
_VERSIONS = "the versions do not fit"
_AGAIN = {
    "connection": "a connection between nodes broke",
    "nccl": "NCCL or InfiniBand failed",
    "unreachable": "a node could not be reached",
    "waited": "a rank did not come in time",
    "killed": "it was killed by a signal from outside",
    "name-resolution": "a name was not resolved",
    "hub-unreachable": "the hub could not be reached",
    "stale-handle": "a mount broke",
    "port-taken": "the port was taken",
    "gloo-thread": "a thread outlived Python",
}
_REPEATS = {
    "cuda-oom": "the GPU's memory was full",
    "host-memory": "the host's memory was full",
    "ray-memory": "the host's memory was full",
    "ray-worker": "a worker of Ray died",
    "shared-memory": "/dev/shm was full",  # noqa: S108  (words)
    "device-assert": "a kernel failed on the GPU",
    "processes": "no further process could be started",
    "crashed": "the program crashed",
    "exception": "the program failed",
}
_WITHOUT = {
    "lost": "the node was lost",
    "stuck": "processes on the node cannot be ended",
    "ecc": "the GPU is faulty",
    "gpu-lost": "the GPU is lost",
    "driver-mismatch": "the GPU driver was updated while the old one was loaded",
    "nvml": "NVML does not answer",
    "no-gpu": "the GPUs are not there",
    "gpu-busy": "the GPUs are in use",
    "fabric": "the fabric of the GPUs is not up",
    "no-space": "the disk is full",
    "failed-write": "a checkpoint could not be written",
    "io-error": "the disk fails",
    "hang-node": "a node keeps its rank from running",
}
_NEVER = {
    "no-torch": _PACKAGE,
    "no-module": _PACKAGE,
    "import-name": _PACKAGE,
    "noexec": _PACKAGE,
    "undefined-symbol": _PACKAGE,
    "glibc": _PACKAGE,
    "shared-library": _PACKAGE,
    "ninja": _PACKAGE,
    "extension-build": "an extension cannot be compiled",
    "syntax": "the program has a syntax error",
    "no-script": "the script does not exist",
    "missing-file": "a file is missing",
    "broken-file": "a file is broken",
    "weights-only": "torch.load refused a file that has more than tensors",
    "permission": "access was denied",
    "checkpoint-pieces": "the checkpoint was saved by another number of ranks",
    "hub-access": "the hub denies access",
    "wandb-key": "a key is not set",
    "quota": "the disk quota is used up",
    "memlock": "memory cannot be locked",
    "open-files": "too many files are open",
    "no-interface": "an interface is not there",
    "no-address": "an interface is not there",
    "own-node": "the script connects to its own node",
    "duplicate-gpu": "two ranks use one GPU",
    "device-ordinal": "there are more ranks than GPUs",
    "nccl-on-cpu": "NCCL needs GPUs",
    "versions": _VERSIONS,
    "old-driver": _VERSIONS,
    "ray-options": "ray.init() has options of a new cluster",
    "ray-version": _VERSIONS,
    "unused-parameter": "a parameter got no gradient",
    "rank-mismatch": "the script sets other ranks",
    "non-finite": "the loss is not finite",
    "usage": "the command line is wrong",
    "command": "the command cannot be run",
    "stop": "the run was stopped",
    "world": "ranks met elsewhere than planned",
    "supervisor": "clusterctl's own process failed",
    "start": "not all ranks joined in time",
}
RULES: Dict[str, Rule] = {
    **_each(_AGAIN, "again"),
    **_each(_REPEATS, "again", 2),
    **_each(_WITHOUT, "without"),
    **_each(_NEVER, "end"),
    "hang": Rule("again", "no rank showed a sign of life", 2),
    "late": Rule("again", "not all ranks joined in time", 1),
}
"""Kind of cause → what follows; each kind that `printed_cause` names is here, and silent ends."""
