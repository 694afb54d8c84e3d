"""What each library would pick for a value: the traps that its users fall into."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.facts.network.interfaces import Interface
from clusterctl.facts.network.rdma import RdmaPort
from clusterctl.network.simulate import (
    gloo_picks,
    nccl_hcas,
    nccl_picks,
    surprises,
    tensorpipe_picks,
)


def named(*names: str) -> tuple[Interface, ...]:
    return tuple(
        Interface(name=name, addresses=(f"10.{i}.0.1/24",), running=True)
        for i, name in enumerate(names)
    )


HOST = named("lo", "eth0", "eth1", "eth10", "docker0", "br-9f", "ib0")


@pytest.mark.parametrize(
    ("value", "picked"),
    [
        ("eth0", ("eth0",)),
        ("eth1", ("eth1", "eth10")),  # a prefix
        ("=eth1", ("eth1",)),
        ("=eth1,ib0", ("eth1", "ib0")),  # the sign holds for the whole list
        ("^lo,docker,br-,eth", ("ib0",)),
        ("^=lo,docker0", ("eth0", "eth1", "eth10", "br-9f", "ib0")),
        ("eth0:1", ("eth0",)),  # an alias ends at the colon
        ("e", ("ib0",)),  # one character is ignored: as if unset
        ("", ("ib0",)),  # unset: InfiniBand first
        ("=^eth0", ()),
        ("eth0,=ib0", ("eth0",)),  # the second is taken literally
        (" eth0", ()),  # nothing is trimmed
        ("wlan", ()),
    ],
)
def test_nccl_follows_its_own_rules(value: str, picked: tuple[str, ...]) -> None:
    assert nccl_picks(value, HOST).interfaces == picked


def test_nccl_left_alone_takes_the_first_that_is_no_docker_bridge() -> None:
    assert nccl_picks("", named("lo", "docker0", "br-9f", "eth0")).interfaces[0] == "br-9f"


def test_nccl_takes_the_loopback_first_if_a_value_does_not_exclude_it() -> None:
    loopback = Interface(name="lo", addresses=("127.0.0.1/8",), running=True, loopback=True)

    assert nccl_picks("^docker0", (*named("eth0"), loopback)).interfaces == ("lo", "eth0")
    assert nccl_picks("", (*named("eth0"), loopback)).interfaces == ("eth0",)


def test_nccl_sees_only_running_interfaces_with_an_address() -> None:
    down = Interface(name="eth0", addresses=("10.0.0.1/24",), running=False)
    bare = Interface(name="eth1", running=True)

    assert nccl_picks("eth", (down, bare)).interfaces == ()


@pytest.mark.parametrize("value", ["=eth0", "^lo", "eth", "eth0, eth1", "nope"])
def test_gloo_aborts_on_anything_but_whole_names(value: str) -> None:
    assert "Gloo aborts" in gloo_picks(value, HOST).problem


def test_gloo_takes_a_list_of_whole_names() -> None:
    assert gloo_picks("eth0,ib0", HOST).interfaces == ("eth0", "ib0")


def test_tensorpipe_falls_back_to_loopback_in_silence() -> None:
    assert tensorpipe_picks("eth0", HOST).interfaces == ("eth0",)
    assert "127.0.0.1" in tensorpipe_picks("=eth0", HOST).problem


def test_a_prefix_that_takes_more_than_it_names_is_a_surprise() -> None:
    assert surprises("eth1", HOST) == ("eth10",)
    assert surprises("eth", HOST) == ()  # meant as a prefix
    assert surprises("=eth1", HOST) == ()


@given(st.text(max_size=20))
def test_no_value_breaks_the_simulation(value: str) -> None:
    for picks in (nccl_picks, gloo_picks, tensorpipe_picks):
        assert set(picks(value, HOST).interfaces) <= {i.name for i in HOST}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("", "a:1 mlx5_0:1 mlx5_0:2 mlx5_1:1 mlx5_10:1"),
        ("x", "a:1 mlx5_0:1 mlx5_0:2 mlx5_1:1 mlx5_10:1"),  # one character is ignored
        ("mlx5_1", "mlx5_1:1 mlx5_10:1"),  # a prefix
        ("=mlx5_1", "mlx5_1:1"),
        ("=mlx5_0:2,mlx5_1", "mlx5_0:2 mlx5_1:1"),
        ("^mlx5", "a:1"),
        ("^=mlx5_0:1,a", "mlx5_0:2 mlx5_1:1 mlx5_10:1"),
        ("=none", ""),
    ],
)
def test_which_ports_nccl_takes(value: str, wanted: str) -> None:
    ports = [
        RdmaPort(device=device, port=port, state="ACTIVE", link_layer="InfiniBand")
        for device, port in (("a", 1), ("mlx5_0", 1), ("mlx5_0", 2), ("mlx5_1", 1), ("mlx5_10", 1))
    ]

    found = " ".join(f"{port.device}:{port.port}" for port in nccl_hcas(value, ports))
    assert found == wanted
