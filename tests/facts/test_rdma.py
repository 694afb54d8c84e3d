"""The parser of RDMA devices, on recorded trees and on what no device has."""

from __future__ import annotations

from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.facts.answers import Answer
from clusterctl.facts.fact import FACTS, Unreadable
from clusterctl.facts.network.counters import parse_counters
from clusterctl.facts.network.rdma import OFI_PLUGINS, ROOT, Gid, parse_ofi_plugin, parse_rdma
from clusterctl.facts.request import FactRequest
from clusterctl.node.probe.folders import matching, read_folder
from tests.facts.answering import answers

RECORDED = Path(__file__).parents[3] / "shared" / "recordings" / "sys-class-infiniband-h100.0"


def read_tree(root: Path) -> dict[str, str]:
    """Return the files that a node would read of this tree."""
    found = {}
    asked = [FACTS[name].ask(FactRequest()) for name in ("rdma", "counters")]
    for pattern, names in (item for each in asked for item in each.rdma.items()):
        for folder in matching(str(root) + "/" + pattern.removeprefix(ROOT)):
            for line in read_folder(folder, names).decode().splitlines():
                name, _, value = line.partition(" ")
                found[f"{ROOT}{Path(folder).relative_to(root)}/{name}"] = value
    return found


def test_a_recorded_host_with_nine_ports() -> None:
    if not RECORDED.exists():
        pytest.skip("the recordings are not beside this checkout")
    read = answers(read_tree(RECORDED))
    ports = parse_rdma(read) or ()

    fast, (bond,) = ports[:-1], ports[-1:]
    assert [port.rate_gbps for port in fast] == [400] * 8
    assert {(p.link_layer, p.board, p.firmware, p.phys_state) for p in fast} == {
        ("InfiniBand", "MT_0000000838", "28.41.1000", "LinkUp")
    }
    assert (bond.name, bond.rate, bond.link_layer) == (
        "mlx5_bond_0/1", "200 Gb/sec (2X NDR)", "Ethernet",
    )  # fmt: skip
    assert all(port.active and port.lid is None and not port.gids for port in ports)
    counters = {each.device: dict(each.values) for each in parse_counters(read)}
    assert counters["mlx5_0/1"]["port_rcv_errors"] == 14
    assert counters["mlx5_0/1"]["link_downed"] == 0


def port_files(**values: Any) -> dict[str, str]:
    given_files = {"state": "4: ACTIVE", **{k.replace("__", "/"): v for k, v in values.items()}}
    return {f"{ROOT}mlx5_0/ports/1/{name}": value for name, value in given_files.items()}


def test_a_roce_port_with_its_addresses() -> None:
    files = port_files(
        phys_state="5: LinkUp", rate="100 Gb/sec (4X EDR)", link_layer="Ethernet", lid="0x0",
        pkeys__0="0xffff",
        gids__0="fe80:0000:0000:0000:0ac0:ebff:fe12:3456", gid_attrs__types__0="IB/RoCE v1",
        gids__1="fe80:0000:0000:0000:0ac0:ebff:fe12:3456", gid_attrs__types__1="RoCE v2",
        gids__2="0000:0000:0000:0000:0000:0000:0000:0000",
        gids__3="0000:0000:0000:0000:0000:ffff:0a01:0005", gid_attrs__types__3="RoCE v2",
        gid_attrs__ndevs__3="ens1f0np0",
    )  # fmt: skip

    printed = (
        "hca_id:\tmlx5_0\n\ttransport:\t\t\tInfiniBand (0)\n\tphys_port_cnt:\t\t\t1\n"
        "\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tmax_mtu:\t\t4096 (5)\n"
        "\t\t\tactive_mtu:\t\t1024 (3)\n"
    )
    (port,) = parse_rdma(answers(files, {"ibv": printed})) or ()

    assert port.mtu == 1024
    assert (port.phys_state, port.rate_gbps, port.lid, port.pkey) == ("LinkUp", 100, 0, 0xFFFF)
    assert [(gid.index, gid.family) for gid in port.gids] == [
        (0, "IB/RoCE v1, link-local"), (1, "RoCE v2, link-local"), (3, "RoCE v2, IPv4"),
    ]  # fmt: skip
    assert (port.gids[2].interface, port.gids_read) == ("ens1f0np0", 4)


@given(st.lists(st.tuples(st.integers(0, (1 << 128) - 1), st.sampled_from(["RoCE v2", "IB"]))))
def test_every_address_that_is_none_of_zeros_is_kept(table: list[tuple[int, str]]) -> None:
    table = table[:16]
    files = port_files()
    for index, (number, kind) in enumerate(table):
        files |= port_files(
            **{f"gids__{index}": IPv6Address(number).exploded, f"gid_attrs__types__{index}": kind}
        )

    (port,) = parse_rdma(answers(files)) or ()

    assert port.gids == tuple(
        Gid(index=index, address=str(IPv6Address(number)), kind=kind)
        for index, (number, kind) in enumerate(table)
        if number & ((1 << 64) - 1)
    )
    assert all(gid.family.startswith(gid.kind) for gid in port.gids)


PLACES = st.sampled_from(
    ["state", "phys_state", "rate", "lid", "pkeys/0", "gids/0", "gids/x", "counters/symbol_error"]
)
VALUES = st.text(alphabet="0123456789abcdefx: \n()GACTIVE", max_size=60) | st.text(max_size=20)


@given(st.dictionaries(PLACES, VALUES))
def test_no_file_breaks_the_parser(files: dict[str, str]) -> None:
    read = answers({f"{ROOT}m/ports/1/{name}": value for name, value in files.items()})

    parse_counters(read)


def test_devices_that_could_not_be_read_are_unknown() -> None:
    read = answers(port_files())
    assert parse_rdma(read) != ()

    read.by_key["rdma"] = _answer("timeout")  # type: ignore[index]

    with pytest.raises(Unreadable, match=r"^no answer within 5 s$"):
        parse_rdma(read)
    assert parse_counters(read) == ()


def _answer(state: str) -> Answer:
    return Answer(state=state, seconds=5.0)


@pytest.mark.parametrize(
    ("states", "wanted"),
    [
        ({}, None),
        (dict.fromkeys(OFI_PLUGINS, "absent"), False),
        (dict.fromkeys(OFI_PLUGINS, "absent") | {OFI_PLUGINS[1]: "ok"}, True),
        (dict.fromkeys(OFI_PLUGINS, "absent") | {OFI_PLUGINS[0]: "error"}, True),
        (dict.fromkeys(OFI_PLUGINS, "denied"), None),
    ],
)
def test_where_the_plugin_for_efa_is(states: dict[str, str], wanted: bool | None) -> None:  # noqa: FBT001
    read = answers()
    for path, state in states.items():
        read.by_key["link:" + path] = _answer(state)  # type: ignore[index]

    assert parse_ofi_plugin(read) is wanted
