"""Rules as `nft list ruleset` prints them, and which of them drops a connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.facts.network.firewall import FirstPacket, find_drop, parse_ruleset

PACKET = FirstPacket("10.0.0.2", "10.0.0.1", 29500)
RULES = """\
table inet filter {
	set trusted {
		type ipv4_addr
		flags interval
		elements = { 10.9.0.0/24,
			10.8.0.0/24 }
	}

	chain input {
		type filter hook input priority filter; policy drop;
		ct state vmap { invalid : drop, established : accept, related : accept }
		iif "lo" accept
		ip saddr @trusted accept
		tcp dport { 22, 80-90 } accept
		jump extra
	}

	chain extra {
		%s
	}

	chain output {
		type filter hook output priority filter; policy accept;
	}
}
table ip nat {
	chain POSTROUTING {
		type nat hook postrouting priority srcnat; policy accept;
		tcp dport 29500 drop
	}
}
"""


def test_the_chains_of_a_ruleset() -> None:
    found = parse_ruleset(RULES % "counter packets 3 bytes 180 drop")
    assert [(c.family, c.table, c.name, c.hook, c.policy) for c in found] == [
        ("inet", "filter", "input", "input", "drop"),
        ("inet", "filter", "extra", "", "accept"),
        ("inet", "filter", "output", "output", "accept"),
    ]
    assert found[0].rules[-1] == "jump extra"


@pytest.mark.parametrize(
    ("rule", "drop"),
    [
        ("tcp dport 29500 accept", None),
        ("ip saddr 10.0.0.0/24 tcp dport 29000-30000 counter accept", None),
        ("ip saddr 10.1.0.0/24 accept", "policy drop"),
        ("ip saddr != 10.1.0.0/24 accept", None),
        ('iifname != "lo" meta l4proto { tcp, udp } th dport 29500 drop',) * 2,
        ("tcp dport 29500 reject with tcp reset",) * 2,
        ('log prefix "drop it: " tcp dport 29500 drop comment "accept"',) * 2,
        ("udp dport 29500 accept", "policy drop"),
        ("ct state established,related accept", "policy drop"),
        ("ct state new accept", None),
        ("goto extra", "policy drop"),  # a loop, which no kernel allows
        ("jump none", "policy drop"),
        ("meta mark 0x1 accept", "policy drop"),
        ("tcp flags syn drop", "policy drop"),
        ("tcp dport 29500 return", "policy drop"),
    ],
)
def test_what_drops_a_packet(rule: str, drop: str | None) -> None:
    found = find_drop(parse_ruleset(RULES % rule), "input", PACKET)
    assert (found.rule if found else None) == drop
    assert found is None or found.chain.name == "input"


def test_a_name_that_a_shell_would_read_is_left_out() -> None:
    text = RULES.replace("table inet filter", "table inet $(reboot)")
    assert parse_ruleset(text % "drop") == ()


def test_ipv6() -> None:
    chains = parse_ruleset(RULES % "ip6 saddr fd00::/64 tcp dport 29500 accept")
    assert find_drop(chains, "input", FirstPacket("fd00::2", "fd00::1", 29500)) is None
    assert find_drop(chains, "input", PACKET) is not None


WORDS = [*RULES.split(), "{", "}", "\n", "jump input\n", "drop\n", "tcp dport 29500"]


@given(st.lists(st.sampled_from(WORDS)).map(" ".join) | st.text())
def test_any_text_is_read(text: str) -> None:
    for hook in ("input", "output"):
        find_drop(parse_ruleset(text), hook, PACKET)
