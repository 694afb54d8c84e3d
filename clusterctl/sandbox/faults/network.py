"""Faults of a host's network: firewalls, cables, interfaces, a port in use."""

from __future__ import annotations

import re
from typing import ClassVar

from typing_extensions import override

from clusterctl.errors import UsageError
from clusterctl.sandbox.faults.interface import Fault, Place

SECOND_NETWORK = "10.78.0"
SECOND_BRIDGE = "switch2"

_LISTEN = """'another program'
import socket, sys, time
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("", int(sys.argv[2])))
server.listen()
print("ready", flush=True)
time.sleep(1e9)
"""


class _OfPort(Fault):
    takes = "PORT"

    @override
    def default(self, place: Place) -> str:
        return str(place.master_port)


class _Firewall(_OfPort):
    verdict: ClassVar[str]

    def _table(self, place: Place) -> str:
        return f"inet {self.kind.replace('-', '_')}_{place.port()}"

    @override
    def inject(self, place: Place) -> None:
        match = f"meta l4proto {{ tcp, udp }} th dport {place.port()} {self.verdict}"
        chains = "".join(
            f" chain {hook} {{ type filter hook {hook} priority 0;"
            f' {direction}name != "lo" {match}; }}\n'
            for hook, direction in (("input", "iif"), ("output", "oif"))
        )
        place.run(["nft", "-f", "-"], f"table {self._table(place)} {{\n{chains}}}\n")

    @override
    def heal(self, place: Place) -> None:
        place.undo(["nft", "-f", "-"], f"delete table {self._table(place)}\n")


class PortDropped(_Firewall):
    """A firewall that drops packets: a connect hangs until its timeout."""

    kind = "port-dropped"
    summary = "a firewall silently drops all packets of a port, in and out"
    verdict = "drop"


class PortRejected(_Firewall):
    """A firewall that answers, as firewalld does: `No route to host`."""

    kind = "port-rejected"
    summary = "a firewall rejects all packets of a port, in and out"
    verdict = "reject with icmpx type admin-prohibited"


class SlowNetwork(Fault):
    """A policer, as a broken cable or a wrong switch port: what is above the rate is dropped."""

    kind = "slow-network"
    summary = "the host's network is limited to some Mbit/s"
    takes = "MBITS"
    default_value = "50"
    table = "inet slow_network"

    @override
    def inject(self, place: Place) -> None:
        if not re.fullmatch(r"[1-9]\d{0,5}", place.value):
            raise UsageError(f"expected Mbit/s as a whole number, found {place.value!r}")
        rate = int(place.value) * 125
        limit = f"limit rate over {rate} kbytes/second burst {max(rate // 20, 64)} kbytes drop"
        chains = "".join(
            f" chain {hook} {{ type filter hook {hook} priority 0;"
            f' {direction}name != "lo" {limit}; }}\n'
            for hook, direction in (("input", "iif"), ("output", "oif"))
        )
        place.run(["nft", "-f", "-"], f"table {self.table} {{\n{chains}}}\n")

    @override
    def heal(self, place: Place) -> None:
        place.undo(["nft", "-f", "-"], f"delete table {self.table}\n")


class LinkDown(Fault):
    """A pulled cable."""

    kind = "link-down"
    summary = "the network cable is pulled"

    @override
    def inject(self, place: Place) -> None:
        place.netns.run_ip(f"link set {place.host.name} down")

    @override
    def heal(self, place: Place) -> None:
        place.netns.run_ip(f"link set {place.host.name} up")
        place.netns.wait_for_links([place.host])


class SecondInterface(Fault):
    """A second network that is up and that other hosts may lack."""

    kind = "second-interface"
    summary = "a second interface is up, on a separate network"
    takes = "NAME=ADDRESS/PREFIX"

    @override
    def default(self, place: Place) -> str:
        return f"ens9={SECOND_NETWORK}.{re.split('[.:]', place.host.address)[-1]}/24"

    def _veth(self, place: Place) -> str:
        return f"{place.host.name}-2"

    @override
    def inject(self, place: Place) -> None:
        name, equals, address = place.value.partition("=")
        if not (name and equals and "/" in address):
            raise UsageError(f"expected {self.takes}, found {place.value!r}")
        place.netns.run_ip(f"link add {SECOND_BRIDGE} type bridge forward_delay 0", check=False)
        place.netns.run_ip(
            f"link set {SECOND_BRIDGE} up",
            *place.netns.veth_commands(
                self._veth(place), SECOND_BRIDGE, name, place.netns.init_pid(place.host.name)
            ),
        )
        batch = f"address add {address} dev {name}\nlink set {name} up\n"
        place.run(["ip", "-batch", "-"], batch)

    @override
    def heal(self, place: Place) -> None:
        place.netns.run_ip(f"link delete {self._veth(place)}", check=False)


class InterfacesRenamed(Fault):
    """A new interface name, as after a reboot or a new kernel."""

    kind = "interfaces-renamed"
    summary = "the network interface has a new name"
    takes = "NAME"
    default_value = "wan0"

    @override
    def inject(self, place: Place) -> None:
        place.run(["ip", "-batch", "-"], _rename(place.host.interface, place.value))

    @override
    def heal(self, place: Place) -> None:
        # All of it, whatever fails: a name that cannot be has left the interface down.
        place.undo(["ip", "-force", "-batch", "-"], _rename(place.value, place.host.interface))


def _rename(old: str, new: str) -> str:
    return f"link set {old} down\nlink set {old} name {new}\nlink set {new} up\n"


class PortTaken(_OfPort):
    """A port that another process listens on, such as a forgotten run."""

    kind = "port-taken"
    summary = "another process listens on a port"
    loopback = True

    @override
    def inject(self, place: Place) -> None:
        place.start_program(_LISTEN, self.kind, str(place.port()))

    @override
    def heal(self, place: Place) -> None:
        place.end_program(self.kind, place.value)
