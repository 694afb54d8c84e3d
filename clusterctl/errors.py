"""The one tree of exceptions: each means that a verb cannot continue, and carries its exit code.

ClusterError                 1   the verb failed
├── UsageError               2   the command line asks for something that cannot be
│   ├── InventoryError       2   the inventory file has problems, all of them listed
│   └── SeveralRuns          2   a word means several runs
├── SyncRefused              1   it would delete on the nodes what the person may still want
│   └── LargeCopy            1   it would copy very much without consent
├── CouldNotTell             3   a node did not answer, so the verb cannot say
├── FunctionFailed           1   a function that ran on the nodes raised, or returned nothing
├── NotEnded                 1   a run was not over in time; it keeps running
├── LaunchRefused          125   clusterctl ended it before the job could run
└── Interrupted            130   the person ended it, and this became of what was begun

`NodeError` is not in the tree: a verb continues without the node that failed. Transport raises it,
and it becomes a value in that node's reply.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterctl.safe_text import printable_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

OPERATION = "operation"
"""The phase of an error that the node's operation answers."""
OLDER = "older"
"""The state of a node whose run was started by a version without the operation."""
FOLLOW = "follow"
"""The phase of a node that is not tried any more."""
_SHOWN_RUNS = 8


class ClusterError(Exception):
    """The verb cannot continue; `str()` says what happened, where, what was wanted and found."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        """Keep the message for the person and the command to type next."""
        super().__init__(message)
        self.hint = hint


class UsageError(ClusterError):
    """The command line asks for something that cannot be done as written."""

    exit_code = 2


class InventoryError(UsageError):
    """The inventory has problems; `problems` holds one `file:line: key: wanted, found` each."""

    def __init__(self, problems: tuple[str, ...], *, hint: str | None = None) -> None:
        super().__init__("\n".join(problems), hint=hint)
        self.problems = problems


class SeveralRuns(UsageError):  # noqa: N818  (a word with several meanings, not a fault)
    """A word is a part of the ids or names of several runs, or of one where that is too little."""

    def __init__(
        self, word: str, runs: Mapping[str, str], wanted: str = "a part of one run's id or name"
    ) -> None:
        """List them by id and name; the command line turns `choices` into commands."""
        shown = [f"{run} ({name})" if name else run for run, name in runs.items()]
        more = len(shown) - _SHOWN_RUNS
        listed = ", ".join(shown[:_SHOWN_RUNS]) + (f" and {more} more" if more > 0 else "")
        super().__init__(f"{word}: expected {wanted}, found it in {listed}")
        self.word = word
        self.choices = tuple(runs)[:_SHOWN_RUNS]
        """The ids of the first of them."""


class CouldNotTell(ClusterError):  # noqa: N818  (a state of knowledge, not a fault)
    """A node did not answer, so the result is unknown."""

    exit_code = 3


class NotEnded(ClusterError, TimeoutError):  # noqa: N818  (the run is well)
    """A run was not over within the time that was given; it keeps running."""


class FunctionFailed(ClusterError):  # noqa: N818  (as `concurrent.futures` tells of a future)
    """A function that a session ran on the nodes failed there."""

    def __init__(
        self, message: str, *, node: str, rank: int | None, traceback: str, hint: str
    ) -> None:
        """Keep where it failed first, and the traceback that this rank printed; text, no object."""
        super().__init__(message, hint=hint)
        self.node, self.rank, self.traceback = node, rank, traceback


class SyncRefused(ClusterError):  # noqa: N818  (refused on purpose)
    """The sync would delete files on the nodes; nothing was changed."""


class LargeCopy(SyncRefused):
    """A copy is so large that it may be a mistake; nothing was copied."""


class LaunchRefused(ClusterError):  # noqa: N818  (ended on purpose, before the job)
    """clusterctl ended the launch before or without the job; `by` says what ended it."""

    exit_code = 125

    def __init__(self, message: str, *, hint: str | None = None, by: str = "plan") -> None:
        """Keep what ended it: check, sync, plan, busy, start, checkpoint or controller."""
        super().__init__(message, hint=hint)
        self.by = by


class Interrupted(ClusterError):  # noqa: N818  (the person's own wish, not a fault)
    """The person ended the launch while it began; the message says what became of it."""

    exit_code = 130
    by: ClassVar[str] = "stop"


class NodeError(Exception):
    """Why one node failed; raised in transport, and a value in verbs."""

    def __init__(
        self,
        state: str,
        phase: str,
        message: str = "",
        hint: str = "",
        *,
        node: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep what happened.

        Args:
            state: transport's `State`, or the kind of error that the operation names.
            phase: where it ended: config, resolve, connect, jump, banner, kex, hostkey, auth, open,
                exec, limit, answer, asleep; or `OPERATION`, or `FOLLOW`.
            message: the words of the server, of this system or of the operation.
            hint: the command to type next.
            node: the inventory's node name; empty until it is known.
            details: all that an operation says of its error.
        """
        self.state = state
        self.phase = phase
        self.message = message if phase == OPERATION else printable_words(message)
        self.hint = hint
        self.node = node
        self.details = details or {}
        super().__init__(self.message)

    def __str__(self) -> str:
        """Return what is shown: `state (phase): message`, or the message if it says all."""
        if self.phase in {OPERATION, FOLLOW}:
            return self.message
        where = f" ({self.phase})" if self.phase not in {"", self.state} else ""
        return self.state + where + (f": {self.message}" if self.message else "")

    @property
    def answered(self) -> bool:
        """The node answered: its operation refused."""
        return self.phase == OPERATION

    def document(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            "node": self.node,
            "kind": self.state,
            "message": str(self),
            "hint": self.hint,
            "answered": self.answered,
            "details": dict(self.details),
        }
