"""The parsers of firewalls, reserved ports, tracked connections and proxies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.facts.network.firewall import FIREWALLD, UFW, parse_conntrack, parse_firewall
from clusterctl.facts.network.interfaces import parse_interfaces
from clusterctl.facts.network.ports import parse_reserved_ports
from clusterctl.facts.software.settings import hide_credentials
from tests.facts.answering import answers

PORTS = st.tuples(st.integers(1, 65535), st.integers(1, 65535)).map(lambda p: (min(p), max(p)))


@given(st.lists(PORTS, max_size=5))
def test_reserved_ports_as_the_kernel_lists_them(ports: list[tuple[int, int]]) -> None:
    text = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ports) + "\n"

    assert parse_reserved_ports(text) == tuple(ports)


@given(st.text(alphabet="0123456789-, \n", max_size=20))
def test_no_text_breaks_the_parser_of_reserved_ports(text: str) -> None:
    found = parse_reserved_ports(text)

    assert found is None or all(type(port) is int for pair in found for port in pair)


@pytest.mark.parametrize(
    ("files", "programs", "wanted"),
    [
        ({FIREWALLD: "812\n"}, {"nft": "/usr/sbin/nft"}, "firewalld"),
        ({FIREWALLD: "", UFW: "# ufw\nENABLED=yes\nLOGLEVEL=low\n"}, {}, "ufw"),
        ({UFW: 'ENABLED="yes"'}, {}, "ufw"),
        (
            {UFW: "# ENABLED=yes\nENABLED=no\n"},
            {"nft": "", "iptables": "/sbin/iptables"},
            "iptables",
        ),
        ({}, {"nft": "/usr/sbin/nft", "iptables": "/sbin/iptables"}, "nft"),
        ({}, {"nft": "", "iptables": ""}, ""),
        ({}, {}, None),
    ],
)
def test_which_firewall_a_node_has(
    files: dict[str, str], programs: dict[str, str], wanted: str | None
) -> None:
    assert parse_firewall(answers(files, others={"self": {"programs": programs}})) == wanted


def test_tracked_connections() -> None:
    count = "/proc/sys/net/netfilter/nf_conntrack_count"
    limit = "/proc/sys/net/netfilter/nf_conntrack_max"

    assert parse_conntrack(answers({count: "12\n", limit: "262144\n"})) == (12, 262144)
    assert parse_conntrack(answers({count: "12\n", limit: "0\n"})) is None
    assert parse_conntrack(answers({count: "12\n"})) is None
    assert parse_conntrack(answers({count: "12\n", limit: "9" * 25})) is None, "no record holds it"


SECRET = st.text(alphabet="abc0189:%@,#?", min_size=1, max_size=10)


@given(SECRET, st.sampled_from(["http_proxy", "HTTPS_PROXY", "all_proxy"]))
def test_no_password_of_a_proxy_is_kept(secret: str, name: str) -> None:
    given_urls = (
        f"http://{secret}@proxy:3128/",
        f"{secret}@proxy:3128",
        f"socks5://{secret}@proxy",
        f"http://user:{secret}/{secret}@proxy:3128",
    )

    hidden = hide_credentials(tuple((name, url) for url in given_urls))

    assert [value for _, value in hidden] == [
        "http://proxy:3128/", "proxy:3128", "socks5://proxy", "http://proxy:3128",
    ]  # fmt: skip


def test_other_variables_are_kept() -> None:
    variables = (("NCCL_DEBUG", "a@b"), ("no_proxy", "10.0.0.0/8,.lab"))

    assert hide_credentials(variables) == variables


def test_the_stricter_of_two_settings_counts() -> None:
    conf = "/proc/sys/net/ipv4/conf"
    files = {
        f"{conf}/all/rp_filter": "0", f"{conf}/eth0/rp_filter": "1", f"{conf}/eth1/rp_filter": "2",
        f"{conf}/all/arp_ignore": "1", f"{conf}/eth0/arp_ignore": "0",
    }  # fmt: skip
    listed = [{"ifname": "eth0"}, {"ifname": "eth1"}]

    found = parse_interfaces(answers(files, others={"interfaces": listed})) or ()

    assert [(one.rp_filter, one.arp_ignore) for one in found] == [(1, 1), (2, 1)]
