"""Which processes of a rank are asked to end: the programs that listen, not what helps them.

A rank is often a shell with the training below it. A shell without a trap dies of the signal and
leaves the training behind; one with a trap runs it when its command has ended. So the signal goes
past the shell to the topmost programs that handle it. Below such a program nothing is asked: it
looks after its own helpers. A DataLoader's worker that hears TERM makes the trainer fail while it
saves, and a `tee` that does breaks the trainer's stdout.

If nothing listens, everything is asked: at once, or as soon as what listened has exited.
"""

from __future__ import annotations

import os
import signal
from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from clusterctl.node.event_loop import EventLoop
from clusterctl.node.run.processes import processes
from clusterctl.node.run.processes.processes import Process, ProcessKey, signal_number

SHELLS = frozenset(
    ("ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "ksh93", "mksh", "sh", "tcsh", "zsh")
)
ROUNDS_WITHOUT_HANDLER = 2
"""Rounds without a listener before the rest is asked: a shell may be about to exit by itself."""

MAX_HANDLED_SIGNALS = 32
"""Of 64: no program catches so many on purpose."""

RESCAN_SECONDS = 0.25
"""How often to look for processes that were not asked yet."""

Found = Tuple[List[Process], List[Process]]
"""What listens, and what does not."""


class Signals(NamedTuple):
    """What a process does with signals, as bit masks."""

    blocked: int
    ignored: int
    caught: int

    @classmethod
    def of(cls, pid: int) -> Signals:
        """Read them; a process that has exited handles none."""
        fields = processes.read_status(pid)
        names = (b"SigBlk", b"SigIgn", b"SigCgt")
        blocked, ignored, caught = (int(fields.get(name, b"0"), 16) for name in names)
        return cls(blocked, ignored, caught)

    def handles(self, number: int) -> bool:
        """Tell whether it has a handler, or a thread that waits for it.

        What catches nearly every signal does not count: so does the Go runtime in every program,
        such as the service that wandb starts below a trainer.
        """
        if bin(self.caught).count("1") > MAX_HANDLED_SIGNALS:
            return False
        return bool((self.caught | self.blocked) >> number - 1 & 1)

    def ignores(self, number: int) -> bool:
        """Tell whether it ignores it."""
        return bool(self.ignored >> number - 1 & 1)


def signal_ranks(loop: EventLoop, ranks: Iterable[ProcessKey], name: Optional[str]) -> None:
    """Send ranks a signal that asks them to end, for as long as something of them is left.

    Without a signal only those that were stopped are resumed.
    """
    if name is None:
        try:
            table = processes.process_table()
        except OSError:
            return  # it cannot be checked now
        resume_stopped(table, {pid for pid, _ in ranks if pid in table})
        return
    number = signal_number(name)

    def ask(audiences: List[StopSignals]) -> None:
        try:
            table = processes.process_table()
            left = [audience for audience in audiences if audience.ask(table)]
        except OSError:
            left = audiences  # it cannot be checked now; the next round can
        if left:
            loop.call_later(RESCAN_SECONDS, lambda: ask(left))

    ask([StopSignals(key, number) for key in ranks])


class StopSignals:
    """The processes of one rank, and which of them were asked. Each is asked once."""

    def __init__(self, leader: ProcessKey, number: int) -> None:
        """Take the rank's own process, and the signal that asks it to end."""
        self._leader, self._number = leader, number
        self._group: Optional[int] = None
        self._rest: Set[ProcessKey] = set()
        """What does not listen: it is still the rank's when its parent has exited."""
        self._asked: Set[ProcessKey] = set()
        self._rounds = ROUNDS_WITHOUT_HANDLER

    def ask(self, table: Dict[int, Process]) -> bool:
        """Ask those that listen and were not asked yet; tell whether any of the rank is left."""
        children = processes.children_of(table)
        tops = self._tops(table)
        listeners: List[Process] = []
        rest: List[Process] = []
        for top in tops:
            more, others = self._walk(table[top], children)
            listeners += more
            rest += others
        self._rest.update(process.key for process in rest)
        self._send(listeners)
        self._rounds = 0 if listeners else self._rounds + 1
        if self._rounds >= ROUNDS_WITHOUT_HANDLER:
            self._send(rest)
        resume_stopped(table, tops)
        return bool(tops)

    def _tops(self, table: Dict[int, Process]) -> Set[int]:
        """Return the processes that are the rank's, without what descends from another of them."""
        leader = table.get(self._leader[0])
        if leader is not None and leader.key != self._leader:
            self._group = None  # the number is another's now, and so is its group's
        elif leader is not None and leader.group == leader.pid:
            self._group = leader.group
        known = {self._leader, *self._rest}
        own = {
            process.pid
            for process in table.values()
            if not process.exited and (process.key in known or process.group == self._group)
        }
        return own - processes.descendants(own, table)

    def _send(self, those: Iterable[Process]) -> None:
        for process in those:
            if process.key not in self._asked:
                self._asked.add(process.key)
                processes.send(process.key, self._number)

    def _walk(self, process: Process, children: Dict[int, List[Process]]) -> Found:
        """Return what listens and what does not, of a process and those below it."""
        signals = Signals.of(process.pid)
        handles, shell = signals.handles(self._number), is_shell(process.pid)
        if handles and not shell:
            return [process], []
        listeners: List[Process] = []
        foreground: List[Process] = []
        rest: List[Process] = []
        for child in children.get(process.pid, ()):
            # To read the arguments of a process that is stuck could hang us.
            stuck = child.uninterruptible or process.uninterruptible
            forked = not shell and not stuck and same_program(child.pid, process.pid)
            if forked or child.exited:
                continue  # a forked child is a worker of this process
            more, others = self._walk(child, children)
            listeners += more
            if handles and is_foreground(child.pid, signals):
                foreground += others
            else:
                rest += others
        if handles and not listeners:
            # Its trap does the asking, but waits for the command in the foreground.
            return [process, *foreground], rest
        # A shell whose command is ended first would begin its next line.
        return listeners, [process, *foreground, *rest]


def is_shell(pid: int) -> bool:
    """Tell whether a process is a shell, whatever its script is called."""
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid)) in SHELLS
    except OSError:
        return False


def is_foreground(child: int, shell: Signals) -> bool:
    """Tell whether a shell waits for a child before it does anything else, traps included.

    Of what follows `&`, a shell lets SIGQUIT be ignored.
    """
    return not shell.ignores(signal.SIGQUIT) and not Signals.of(child).ignores(signal.SIGQUIT)


def same_program(child: int, parent: int) -> bool:
    """Tell whether a child was only forked: it is a worker of its parent, and ends with it."""
    words = processes.read_proc(child, "cmdline")
    return bool(words) and words == processes.read_proc(parent, "cmdline")


def resume_stopped(table: Dict[int, Process], tops: Set[int]) -> None:
    """Let suspended processes continue: they would never receive the signal."""
    for pid in tops | processes.descendants(tops, table):
        if table[pid].state == "T":
            processes.send(table[pid].key, signal.SIGCONT)
