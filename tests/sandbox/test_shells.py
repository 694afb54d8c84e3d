"""Hosts log in to the shell that was asked for, and its rc files print where asked."""

from __future__ import annotations

import pytest

from clusterctl.errors import UsageError
from clusterctl.sandbox import shells
from tests.conftest import MakeSandbox

ALL = ("dash", "bash", "bash+noise", "zsh+noise", "fish+noise", "tcsh+noise")


def test_shells_are_dealt_out_with_their_noise(make_sandbox: MakeSandbox) -> None:
    box = make_sandbox(nodes=len(ALL), shells=ALL)
    for host, wanted in zip(box.hosts, ALL, strict=True):
        name, noisy = shells.split(wanted)
        for user in ("root", "ada"):
            done = box.run(["ssh", f"{user}@{host.name}", "echo $SHELL"])
            assert done.stdout.strip().endswith(f"/{name}")
            assert ("noise" in done.stdout) == noisy


def test_an_unknown_shell_is_refused() -> None:
    with pytest.raises(UsageError, match="ksh"):
        shells.split("ksh+noise")
