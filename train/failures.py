"""What a failure comes to: the exit codes of docs/reference/checkpoints.md, and the words."""

from __future__ import annotations

from train import status
from train.checkpoint import CheckpointError
from train.config import ConfigError
from train.firstfailure import AnotherRankFailed
from train.loop import NonFinite
from train.place import NodesDiffer, NoPlace
from train.sharding import ModelError

CODES: dict[type[Exception], int] = {
    ConfigError: status.USAGE,
    NoPlace: status.USAGE,
    NodesDiffer: status.NODES_DIFFER,
    ModelError: status.NODES_DIFFER,
    CheckpointError: status.CHECKPOINT,
    NonFinite: status.NON_FINITE,
    AnotherRankFailed: status.UNEXPECTED,
}


def exit_code(error: BaseException) -> int | None:
    """Return the exit code of an error; None where its traceback is what is worth reading."""
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), None)


def reason(error: BaseException) -> str:
    """Return what status.json says of an error: of another rank's, what that rank said."""
    return (
        str(error) if isinstance(error, AnotherRankFailed) else f"{type(error).__name__}: {error}"
    )
