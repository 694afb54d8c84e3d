"""The readers refuse what a shell of ssh would run, and take what ssh takes."""

from __future__ import annotations

import pytest

from clusterctl.inventory.addresses import read_host
from clusterctl.inventory.kinds import JUMP
from clusterctl.inventory.problems import InvalidValue


@pytest.mark.parametrize(
    "value",
    [
        "fe80::1%;touch${IFS}/tmp/x;",
        "fe80::1%$(id)",
        "[fe80::1%`id`]",
        "fe80::1%a b",
        "fe80::1%",
        "fe80::1%a%b",
    ],
)
def test_an_address_whose_interface_a_shell_would_read_is_refused(value: str) -> None:
    with pytest.raises(InvalidValue):
        read_host(value)
    with pytest.raises(InvalidValue):
        JUMP.read(f"ada@{value}")


def test_an_address_may_name_its_interface() -> None:
    assert read_host("[fe80::1%eth0.10]") == ("fe80::1%eth0.10",)


@pytest.mark.parametrize(
    "value", ["a;id", "-oX", "a';touch${IFS}/tmp/x;'", "x,`id`", "a,", "a@b@c d", "ssh://a%20b"]
)
def test_a_jump_host_that_a_shell_would_read_is_refused(value: str) -> None:
    with pytest.raises(InvalidValue):
        JUMP.read(value)


@pytest.mark.parametrize(
    "value",
    ["none", "bastion", "ada@b:22,c", "ssh://ada@b:22", "[::1]:22", "ada@fe80::1%eth0", "b_1.x-y"],
)
def test_jump_hosts_in_the_forms_that_ssh_takes(value: str) -> None:
    assert JUMP.read(value) == value
