"""The one tree of exceptions: each means that a verb cannot go on, and carries its exit code.

ClusterError                 1   something was not as wished
├── UsageError               2   the command line asks for something that cannot be
│   └── InventoryError       2   the inventory file has problems, all of them listed
├── SyncRefused              1   it would delete on the nodes what the person may still want
├── CouldNotTell             3   a node did not answer, so the verb cannot say
├── NotEnded                 1   a run was not over in time; it goes on
├── LaunchRefused          125   clusterctl ended it before the job could run
└── Interrupted            130   the person ended it, and this became of what was begun

What happened on one node is not an exception but a value (`transport.interface.Reply`): one
dead node never hides the others.
"""

from __future__ import annotations

from typing import ClassVar


class ClusterError(Exception):
    """The verb cannot go on; `str()` says what happened, where, what was wanted and found."""

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
        """Join the problems, one a line."""
        super().__init__("\n".join(problems), hint=hint)
        self.problems = problems


class CouldNotTell(ClusterError):  # noqa: N818  (a state of knowledge, not a fault)
    """A node did not answer, so neither yes nor no can be said."""

    exit_code = 3


class NotEnded(ClusterError, TimeoutError):  # noqa: N818  (the run is well)
    """A run was not over within the time that was given; it goes on."""


class SyncRefused(ClusterError):  # noqa: N818  (refused on purpose)
    """A sync would do to the nodes what nobody asked for in so many words; nothing was changed."""


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
