"""Which hosts of an inventory are this machine."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import psutil
import pytest

from clusterctl.errors import InventoryError
from clusterctl.inventory import load
from clusterctl.inventory.addresses import is_here, own_addresses, own_user
from clusterctl.inventory.cluster import Ssh


def local(tmp_path: Path, entry: str) -> bool:
    path = tmp_path / "hosts.yaml"
    path.write_text(f"cluster: lab\nssh: {{port: 2222, user: nobody-else}}\nnodes:\n  - {entry}\n")
    node = load(path).nodes[0]
    assert (node.ssh == Ssh()) == node.local
    return node.local


def test_the_own_addresses_are_those_of_the_interfaces() -> None:
    assert {"127.0.0.1"} <= own_addresses()
    assert all(ipaddress.ip_address(address) for address in own_addresses())


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.8.8.8", "::1"])
def test_loopback_is_here(tmp_path: Path, host: str) -> None:
    assert local(tmp_path, f"'{host}'")


def test_every_own_address_is_here(tmp_path: Path) -> None:
    for address in own_addresses():
        assert local(tmp_path, f"'{address}'")


@pytest.mark.parametrize("host", ["gpu01", "192.0.2.1", "2001:db8::1", "localhost.lab"])
def test_other_hosts_are_elsewhere(tmp_path: Path, host: str) -> None:
    assert not local(tmp_path, f"'{host}'")


def test_an_ipv6_address_is_here_however_it_is_written() -> None:
    own = frozenset({"fd00::5"})
    assert is_here("FD00:0:0::0005", own)
    assert is_here("fd00::5%eth0", own)
    assert not is_here("fd00::6", own)


def test_a_port_or_another_user_of_its_own_asks_for_ssh(tmp_path: Path) -> None:
    assert not local(tmp_path, "{host: 127.0.0.1, port: 2201}")
    assert not local(tmp_path, "{host: localhost, user: somebody}")
    assert local(tmp_path, f"{{host: localhost, user: {own_user()}}}")


def test_this_machine_twice_must_be_allowed(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("cluster: lab\nnodes: [localhost, 127.0.0.1]\n")
    with pytest.raises(InventoryError, match="same_machine: allow"):
        load(path)
    path.write_text("cluster: lab\nsame_machine: allow\nnodes: [localhost, 127.0.0.1]\n")
    assert [node.local for node in load(path).nodes] == [True, True]


def test_the_user_is_who_runs_this() -> None:
    assert own_user() == psutil.Process().username()
