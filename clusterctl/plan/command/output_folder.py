"""The folder that a command names for its output: where a run's checkpoints are, or are not."""

import itertools
import posixpath
import re
from collections.abc import Iterator, Sequence

from clusterctl.inventory.cluster import Job
from clusterctl.node.checkpoints.names import read_name

_OUTPUT = re.compile(
    "(?:out|output|save|ckpt|checkpoint|default_root)s?_?(?:dir|path|folder|root)?"
)
"""Names of a flag, or of a key of Hydra's, for the folder that a program writes to."""


def named_folders(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each flag, or key, of a command for a folder that it writes to, with the folder.

    A file is none, nor is what has the name of one checkpoint: that is rather read.
    """
    words = [each for word in command for each in word.split("=", 1)]
    for flag, value in itertools.pairwise(words):
        named = read_name(posixpath.basename(value))
        one_checkpoint = named.step is not None or named.epoch is not None
        if value[:1] in ("", "-") or posixpath.splitext(value)[1] or one_checkpoint:
            continue
        if flag.lstrip("-") == "save" and "/" not in value:  # `--save all` says what
            continue
        if _OUTPUT.fullmatch(flag.lstrip("-").replace("-", "_")):
            yield flag, value


def own_folder(job: Job) -> str | None:
    """Return where this run's checkpoints are: the one folder below the job's that it names.

    With `checkpoints: out`, a run of `train.py --out out/a` shares no checkpoint with that of
    `train.py --out out/b`. Without such a folder, or with several, it is the job's.
    """
    if not job.checkpoints:
        return job.checkpoints
    wide = posixpath.normpath(job.checkpoints)
    named = {posixpath.normpath(value) for _, value in named_folders(job.command)}
    below = {value for value in named if value.startswith(f"{wide}/")}
    return below.pop() if len(below) == 1 else job.checkpoints
