"""The errors of a training, with what to do about them, and the exit code of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

DONE = 0
"""All steps are done; or (`preempted`) all ranks agreed to stop, or they had not even met."""
UNEXPECTED = 1
"""A fault of the program or the machine, with a traceback."""
USAGE = 2
"""The configuration, the data, the environment or the folder cannot be used."""
NODES_DIFFER = 3
"""Nodes have different code, data, models or devices, or the model cannot be sharded."""
CHECKPOINT = 4
"""No whole checkpoint to resume from, or the last one or its export could not be written."""
NON_FINITE = 5
"""A loss or gradient was not a number; nothing of it reached the weights."""
INTERRUPTED = 130
"""A second Ctrl-C; as a shell reports it."""
OUT_OF_MEMORY = re.compile("CUDA out of memory|Cuda failure.*out of memory|ALLOC_FAILED")
"""What torch, NCCL and cuBLAS say if a GPU's memory is used up; NCCL allocates outside torch."""
CREDENTIALS = re.compile(r"(?<=://)[^/\s]+@")


class ConfigError(Exception):
    """The training cannot be what was asked for; `problems` holds one sentence for each reason."""

    def __init__(self, *problems: str, hint: str | None = None) -> None:
        """Join the problems, one a line, and the hint last."""
        super().__init__("\n".join((*problems, *((f"hint: {hint}",) if hint else ()))))
        self.problems = problems
        self.hint = hint


class StreamError(ConfigError):
    """Streamed data cannot be read on; all ranks find out in the same step."""


class NodesDiffer(Exception):  # noqa: N818  (named for what is so)
    """What must be the same on every rank is not."""


class LauncherEnvError(Exception):
    """The environment does not say which rank this process is."""


class ModelError(Exception):
    """The model cannot be trained as asked."""


class CheckpointError(Exception):
    """No checkpoint can be loaded, or the last one could not be written."""


class NonFinite(Exception):  # noqa: N818  (named for what is so)
    """A loss or gradient is not a number; the weights are those before it."""


class AnotherRankFailed(Exception):  # noqa: N818  (named for what is so)
    """Another rank ended first; the message is its own."""


CODES: dict[type[Exception], int] = {
    ConfigError: USAGE,
    LauncherEnvError: USAGE,
    NodesDiffer: NODES_DIFFER,
    ModelError: NODES_DIFFER,
    CheckpointError: CHECKPOINT,
    NonFinite: NON_FINITE,
    AnotherRankFailed: UNEXPECTED,
}


def exit_code(error: BaseException) -> int | None:
    """Return the exit code of an error; None if its traceback is what is worth reading."""
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), None)


def reason(error: BaseException) -> str:
    """Return an error as status.json has it: another rank's as that rank reported it."""
    return (
        str(error) if isinstance(error, AnotherRankFailed) else f"{type(error).__name__}: {error}"
    )


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 sample, 2 samples."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def without_credentials(text: str) -> str:
    """Return a text without names and passwords in its addresses."""
    return CREDENTIALS.sub("", text)


@contextmanager
def explain_oom(what: str) -> Iterator[None]:
    """Turn the out-of-memory error of what is done within into a ConfigError: what to change."""
    try:
        yield
    except RuntimeError as error:
        if not OUT_OF_MEMORY.search(str(error)):
            raise
        found = " ".join(str(error).split())
        raise ConfigError(
            f"{what}: expected room in this GPU's memory, found: {found}",
            hint="a smaller per_device_train_batch_size (in evaluation per_device_eval_batch_size) "
            "or seq_len, activation_checkpointing: true, or more ranks; `python -m train --check` "
            "estimates what it takes",
        ) from error
