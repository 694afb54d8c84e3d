"""The firewall rules of a node, as far as they decide which packets arrive and leave."""

from __future__ import annotations

from clusterctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FirewallChain:
    """A chain of an nftables ruleset."""

    family: str
    """`inet`, `ip` or `ip6`."""
    table: str
    name: str
    hook: str = ""
    """`input` or `output`; empty: packets come here only from a rule that jumps."""
    policy: str = "accept"
    """What becomes of a packet that no rule decides."""
    rules: tuple[str, ...] = ()
    """As `nft list ruleset` prints them."""
