"""What the GPUs of this node tell of a hang: kernels that wait for others move no memory."""

from __future__ import annotations

from clusterctl.node.agent.child_tasks import gather, run_program

SECONDS = 5.0
MEMORY_NOISE = 1
"""Percent of the time in which memory moved."""
_QUERY = ("--query-gpu=utilization.gpu,utilization.memory", "--format=csv,noheader,nounits")


def gpus_rest() -> bool:
    """Tell whether kernels run on this node's GPUs, but move nothing in their memory.

    A collective that waits for another rank looks like that. False, too, if the driver does not
    answer.
    """
    tool = run_program("nvidia-smi", ("nvidia-smi", *_QUERY), SECONDS)
    gather([tool])
    if tool.state != "ok" or tool.exit_code:
        return False
    return rest(tool.output.decode("utf-8", "replace"))


def rest(text: str) -> bool:
    """Judge nvidia-smi's lines `100, 0`."""
    rows = [line.split(",") for line in text.splitlines()]
    known = [tuple(int(word) for word in row) for row in rows if all(map(_is_number, row))]
    busy = any(percent > 0 for percent, _ in known)
    return bool(known) and busy and all(memory <= MEMORY_NOISE for _, memory in known)


def _is_number(word: str) -> bool:
    return word.strip().isdigit()
