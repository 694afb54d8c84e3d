"""Follow a run that was just launched; Ctrl-C asks what is to become of it."""

import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from clusterctl.api.run import Run
from clusterctl.cli.shared.agree import can_ask
from clusterctl.cli.shared.output import cannot_write, give_up
from clusterctl.cli.shared.signals import Terminated
from clusterctl.errors import Interrupted
from clusterctl.logs.deduplicate import LineDeduplicator, PassThrough
from clusterctl.report.console import Screen
from clusterctl.report.launch import JsonDisplay, TerminalDisplay
from clusterctl.report.lines import Prefixed
from clusterctl.verbs.events import Event, Notice
from clusterctl.verbs.follow import LONGEST_WAIT

EXIT_STOPPED_FOLLOWING = 130

LaunchDisplay: TypeAlias = TerminalDisplay | JsonDisplay
"""Shows the events of a launch, for a user or for a program."""

LEAVE, STOP, STAY = "leave", "stop", "stay"
QUESTION = "\n[l]eave it running, [s]top it, or keep [f]ollowing? Type l, s or f and Enter [l]: "
QUESTION_SECONDS = 30.0


def make_display(*, as_json: bool) -> LaunchDisplay:
    """Return how the launch is shown."""
    if as_json:
        return JsonDisplay()
    return TerminalDisplay(screen=Screen(), lines=Prefixed(sys.stdout))


@contextmanager
def shown(display: LaunchDisplay) -> Iterator[Callable[[Event], None]]:
    """Show the events of the block, then leave nothing that moves behind."""
    try:
        yield display.show
    finally:
        display.quiet()


def follow_run(
    run: Run, display: LaunchDisplay, *, in_job: Callable[[str], None] | None = None
) -> int:
    """Follow to the end; return launch's exit code.

    Args:
        run: the run.
        display: shows it.
        in_job: called if Slurm ends the batch job in which this is, and all ranks with it.
    """
    sink = PassThrough() if isinstance(display, JsonDisplay) else LineDeduplicator()
    monitor = run._monitor(sink)  # noqa: SLF001  (not public: how lines are shown)
    while True:
        try:
            with shown(display) as show:
                ended = monitor.run(emit=show)
        except KeyboardInterrupt as interrupt:
            wish = LEAVE if isinstance(interrupt, Terminated) else ask()
            if wish == LEAVE:
                (leave if in_job is None else in_job)(run.id)
                return EXIT_STOPPED_FOLLOWING
            if wish == STOP:
                _stop(run, display)
        except OSError as problem:
            if not cannot_write(problem):
                raise
            give_up(problem)  # as with `| head`: the reader left, and the run lives
            leave(run.id)
            return EXIT_STOPPED_FOLLOWING
        else:
            if not ended.known:
                text = (
                    f"no node has answered for {LONGEST_WAIT:g} s: the connection to them is lost"
                )
                Screen().say(Notice(text=text, level="warning"))
                leave(run.id)  # it needs no controller, and may be healthy
                return EXIT_STOPPED_FOLLOWING
            display.ended(ended)
            return ended.exit_code


def _stop(run: Run, display: LaunchDisplay) -> None:
    """Stop the run."""
    try:
        with shown(display) as show:
            result = run.stop(reason="stopped by Ctrl-C", on_event=show)
        display.stopped(result)
    except KeyboardInterrupt:
        raise Interrupted(
            f"{run.id}: interrupted while it was stopped; what is left is unknown",
            hint=f"clusterctl stop {run.id}",
        ) from None


def ask() -> str:
    """Ask what is to become of the run; without a terminal it is left running.

    Without an answer it keeps following: the user may be away, and the run may end meanwhile.
    """
    if not can_ask():
        return LEAVE
    while True:
        sys.stderr.write(QUESTION)
        sys.stderr.flush()
        try:
            if not select.select([sys.stdin], [], [], QUESTION_SECONDS)[0]:
                sys.stderr.write("\nno answer: following\n")
                return STAY
            answer = sys.stdin.readline().strip().lower()
        except KeyboardInterrupt:
            return LEAVE
        for word in (LEAVE, STOP, "follow"):
            if answer and word.startswith(answer):
                return STAY if word == "follow" else word
        if not answer:
            return LEAVE


def leave(run: str) -> None:
    """Tell how to follow and to end a run that is left running."""
    screen = Screen()
    for text in (
        f"{run} keeps running",
        f"  follow it: clusterctl logs -f {run}",
        f"  end it:    clusterctl stop {run}",
    ):
        screen.say(Notice(text=text))
