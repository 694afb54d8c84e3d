"""SIGTERM and SIGHUP are taken as an interrupt, once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from clusterctl.cli.shared.signals import Terminated, termination_as_interrupt


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """Let both signals end this process by default, also where the tests run under nohup."""
    before = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_the_first_interrupts_and_the_others_do_not_disturb(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with termination_as_interrupt():
        with pytest.raises(Terminated, match=number.name):
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(number) == before


def test_under_nohup_a_closed_terminal_changes_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with termination_as_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
