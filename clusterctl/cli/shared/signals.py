"""Ends the command in order on SIGTERM and SIGHUP: a canceled CI job, a closed terminal."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came: end as after Ctrl-C, and ask nothing, since the user may be away."""


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Raise `Terminated` in the main thread on SIGTERM or SIGHUP; an ignored one stays ignored.

    The first one counts. A terminal that closes sends several, and the others would only interrupt
    the clean-up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = {number for number, handler in before.items() if handler == signal.SIG_DFL}
    for number in handled:  # under nohup, SIGHUP is ignored
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


def _terminate(number: int, _frame: FrameType | None) -> None:
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Terminated(signal.Signals(number).name)
