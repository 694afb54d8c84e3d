"""The command that resumes this training, as a person would type it."""

from __future__ import annotations

import os
import shlex
import sys

RUN = "CLUSTERCTL_RUN_ID"
"""Set by clusterctl to the identifier of the run."""


def resume_command(checkpoint: str, *, launched: bool) -> str:
    """Return it.

    Args:
        checkpoint: `latest`, or a path.
        launched: Whether a launcher started this process: how, it does not say.
    """
    flag = ("--resume-from-checkpoint", checkpoint)
    if run := os.environ.get(RUN):
        return f"clusterctl resume {run} --checkpoint {shlex.quote(checkpoint)}"
    if launched:
        return f"the same command with {shlex.join(flag)}"
    return shlex.join((*sys.orig_argv, *flag))
