"""The command that resumes this training, as a user would type it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence

FLAG = "--resume-from-checkpoint"
SETTING = re.compile(r"(\w+\.)?resume_from_checkpoint=")
RUN = "CLUSTERCTL_RUN_ID"
"""Set by clusterctl to the identifier of the run."""


def resume_command(checkpoint: str, *, launched: bool) -> str:
    """Return it.

    Args:
        checkpoint: `latest`, or a path; nothing for the same training once more.
        launched: Whether a launcher started this process, in a way that it does not know.
    """
    flag = ("--resume-from-checkpoint", checkpoint) if checkpoint else ()
    if not checkpoint and (launched or RUN in os.environ):
        return "the same command once more"
    if run := os.environ.get(RUN):
        return f"clusterctl resume {run} --checkpoint {shlex.quote(checkpoint)}"
    if launched:
        return f"the same command with {shlex.join(flag)}"
    return shlex.join((*_without_checkpoint(sys.orig_argv), *flag))


def _without_checkpoint(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command without a checkpoint to resume from."""
    left = iter(words)
    for word in left:
        if word == FLAG:
            next(left, None)
        elif word == "--set":
            value = next(left, "")
            if not SETTING.match(value):
                yield from (word, value)
        elif not word.startswith(f"{FLAG}=") and not SETTING.match(word.removeprefix("--set=")):
            yield word
