"""A checkpoint in an object store: which jobs take its URL, and what looks at it on each node.

No node downloads it for clusterctl: `train/` does, and compares every hash before a rank loads it.
"""

import shlex
from dataclasses import replace
from itertools import pairwise

from clusterctl.errors import UsageError
from clusterctl.inventory.cluster import Job
from clusterctl.model.node_run import Resumed
from clusterctl.node.checkpoints import names
from clusterctl.verbs.checkpoints.query import ChosenCheckpoint

_TRAIN = ("-m", "train")


def is_url(which: str) -> bool:
    """Tell whether a checkpoint is in a store, and not on the nodes."""
    return "://" in which


def stored_checkpoint(url: str, command: tuple[str, ...]) -> ChosenCheckpoint:
    """Return the checkpoint that a URL names, for a job that downloads and verifies it itself."""
    place = url.partition("://")[2].partition("/")[0]
    if "@" in place:
        raise UsageError(
            "--checkpoint: expected a URL without a user and password, found them in it",
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and name them in job.env_from",
        )
    if _TRAIN not in pairwise(command):
        raise UsageError(
            f"--checkpoint {url}: expected a job that downloads and verifies it (-m train),"
            f" found {shlex.join(command)}",
            hint="download it to the same folder on every node, and resume from that:"
            " --checkpoint FOLDER",
        )
    step = names.read_name(url.rstrip("/").rpartition("/")[2]).step
    return ChosenCheckpoint(path=url, step=step, format="clusterctl", verified_on=())


def with_look(job: Job, resumed: Resumed | None) -> Job:
    """Return a job whose own check looks at the checkpoint, if that is in a store.

    `--check` finds whether each node reaches the store, and whether all files are there.
    """
    if resumed is None or not is_url(resumed.checkpoint):
        return job
    return replace(job, check=(*job.command, "--check"))
