"""The command line of `logs`: what is refused before a node is asked."""

from __future__ import annotations

import pytest

from clusterctl.cli.main import main


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
