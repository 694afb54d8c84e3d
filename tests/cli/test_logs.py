"""The command line of `logs`: what is refused before a node is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from clusterctl.cli import logs as module
from clusterctl.cli.main import main
from clusterctl.cli.run_option import OpenRun
from clusterctl.transport.fake import FakePool
from tests.verbs.runs import CLUSTER, RUN


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--grep", "Loss", "--rank", "0"], "--rank, --grep"),
        (["--since", "10m"], "--since"),
        (["-f"], "--follow"),
    ],
)
def test_whole_files_are_collected_or_none(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", "--collect", "out", *words]) == 2
    assert f"wanted it without {named}\n" in capsys.readouterr().err


def test_leaving_a_followed_run_says_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    @contextmanager
    def opened(_args: object) -> Iterator[OpenRun]:
        yield OpenRun(run=RUN, cluster=CLUSTER, pool=FakePool(CLUSTER, {}), record=None)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "open_run", opened)
    monkeypatch.setattr(module, "drive", interrupted)
    assert main(["logs", "-f", RUN]) == 130
    assert capsys.readouterr().err == f"\nstopped following; {RUN} goes on\n"
    assert main(["logs", RUN]) == 130
    assert capsys.readouterr().err == "\ninterrupted\n"
