"""The parsers of links: bonds, counters, and what an interface is on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.facts.network.counters import STATISTICS, counters_of, folder_values, parse_counters
from clusterctl.facts.network.interfaces import BondPort, parse_bonds, parse_interfaces
from tests.facts.answering import answers

NAME = st.from_regex(r"[a-z][a-z0-9.]{0,14}", fullmatch=True)
PORT = st.tuples(NAME, st.booleans())


def bonding(ports: list[tuple[str, bool]]) -> str:
    """Return a bond's file as the kernel writes it."""
    head = "Ethernet Channel Bonding Driver: v6.8.0\n\nMII Status: down\nUp Delay (ms): 0\n"
    each = "\nSlave Interface: {}\nMII Status: {}\nSpeed: 100000 Mbps\nLink Failure Count: 0\n"
    return head + "".join(each.format(name, "up" if up else "down") for name, up in ports)


@given(st.dictionaries(NAME, st.lists(PORT, max_size=4), max_size=3))
def test_every_port_of_every_bond_is_read(bonds: dict[str, list[tuple[str, bool]]]) -> None:
    files = {f"/proc/net/bonding/{bond}": bonding(ports) for bond, ports in bonds.items()}

    assert list(parse_bonds(answers(files))) == [
        BondPort(bond=bond, interface=name, up=up)
        for bond, ports in bonds.items()
        for name, up in ports
    ]


@given(st.text(alphabet="Slave Interface:MII Status:up\n ", max_size=300))
def test_no_text_breaks_the_parser_of_bonds(text: str) -> None:
    parse_bonds(answers({"/proc/net/bonding/bond0": text}))


@given(st.dictionaries(NAME, st.integers(0, (1 << 63) - 1) | st.text(max_size=9), max_size=5))
def test_counters_are_numbers_or_unknown(values: dict[str, int | str]) -> None:
    found = dict(counters_of("eth0", {name: str(value) for name, value in values.items()}).values)

    assert found.items() >= {name: v for name, v in values.items() if isinstance(v, int)}.items()
    assert all(type(value) is int and value >= 0 for value in found.values())


@given(st.text(max_size=100))
def test_any_text_is_the_answer_for_a_folder(text: str) -> None:
    assert all(name in text and value in text for name, value in folder_values(text).items())


def test_counters_of_interfaces_with_an_address_alone() -> None:
    addresses = {
        "eth0": [{"local": "10.0.0.1", "prefixlen": 24}],
        "veth1": [],
        "lo": [{"local": "127.0.0.1", "prefixlen": 8}],
    }
    listed = [{"ifname": name, "addr_info": rows} for name, rows in addresses.items()]
    files = {
        f"/sys/class/net/{interface}/statistics/{name}": "3\n"
        for interface in addresses
        for name in STATISTICS
    }

    (found,) = parse_counters(answers(files, others={"interfaces": listed}))

    assert found.device == "eth0"
    assert dict(found.values) == dict.fromkeys(STATISTICS, 3)


def test_what_an_interface_is_on() -> None:
    listed = [
        {"ifname": "bond0.7", "link": "bond0", "addr_info": []},
        {"ifname": "eth0", "link_index": 12, "link_netnsid": 0, "addr_info": []},
        {"ifname": "odd", "link": 3},
    ]
    files = {
        "/sys/class/net/bond0.7/duplex": "full",
        "/sys/class/net/eth0/duplex": "unknown",
        "/sys/class/net/eth0/carrier_changes": "5",
    }

    found = parse_interfaces(answers(files, others={"interfaces": listed})) or ()

    assert [(one.name, one.parent, one.duplex, one.carrier_changes) for one in found] == [
        ("bond0.7", "bond0", "full", None),
        ("eth0", "", "", 5),
        ("odd", "", "", None),
    ]
