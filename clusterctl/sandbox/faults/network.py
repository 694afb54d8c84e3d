"""Faults of a host's network: firewalls, cables, interfaces, a port in use."""

import re

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


def _master_port(place: Place) -> str:
    return str(place.master_port)


def _add_rules(place: Place, table: str, rule: str) -> None:
    """Apply a rule to all packets, in and out, but for those of the host to itself."""
    chains = "".join(
        f' chain {hook} {{ type filter hook {hook} priority 0; {direction}name != "lo" {rule}; }}\n'
        for hook, direction in (("input", "iif"), ("output", "oif"))
    )
    place.run(["nft", "-f", "-"], f"table inet {table} {{\n{chains}}}\n")


def _remove_rules(place: Place, table: str) -> None:
    place.undo(["nft", "-f", "-"], f"delete table inet {table}\n")


def _firewall(kind: str, summary: str, verdict: str) -> Fault:
    def table(place: Place) -> str:
        return f"{kind.replace('-', '_')}_{place.port()}"

    def inject(place: Place) -> None:
        rule = f"meta l4proto {{ tcp, udp }} th dport {place.port()} {verdict}"
        _add_rules(place, table(place), rule)

    def heal(place: Place) -> None:
        _remove_rules(place, table(place))

    return Fault(kind, summary, inject, heal, takes="PORT", default=_master_port)


def _slow_down(place: Place) -> None:
    """Drop what is above the rate, as a broken cable or a wrong switch port does."""
    if not re.fullmatch(r"[1-9]\d{0,5}", place.value):
        raise UsageError(f"expected Mbit/s as a whole number, found {place.value!r}")
    rate = int(place.value) * 125
    limit = f"limit rate over {rate} kbytes/second burst {max(rate // 20, 64)} kbytes drop"
    _add_rules(place, "slow_network", limit)


def _pull_cable(place: Place) -> None:
    place.netns.run_ip(f"link set {place.host.name} down")


def _plug_cable(place: Place) -> None:
    place.netns.run_ip(f"link set {place.host.name} up")
    place.netns.wait_for_links([place.host])


def _second_address(place: Place) -> str:
    return f"ens9={SECOND_NETWORK}.{re.split('[.:]', place.host.address)[-1]}/24"


def _second_cable(place: Place) -> str:
    return f"{place.host.name}-2"


def _add_interface(place: Place) -> None:
    name, equals, address = place.value.partition("=")
    if not (name and equals and "/" in address):
        raise UsageError(f"expected NAME=ADDRESS/PREFIX, found {place.value!r}")
    place.netns.run_ip(f"link add {SECOND_BRIDGE} type bridge forward_delay 0", check=False)
    place.netns.run_ip(
        f"link set {SECOND_BRIDGE} up",
        *place.netns.veth_commands(
            _second_cable(place), SECOND_BRIDGE, name, place.netns.init_pid(place.host.name)
        ),
    )
    batch = f"address add {address} dev {name}\nlink set {name} up\n"
    place.run(["ip", "-batch", "-"], batch)


def _remove_interface(place: Place) -> None:
    place.netns.run_ip(f"link delete {_second_cable(place)}", check=False)


def _rename(old: str, new: str) -> str:
    return f"link set {old} down\nlink set {old} name {new}\nlink set {new} up\n"


def _rename_interface(place: Place) -> None:
    place.run(["ip", "-batch", "-"], _rename(place.host.interface, place.value))


def _undo_rename(place: Place) -> None:
    # All of it, whatever fails: a name that cannot be has left the interface down.
    place.undo(["ip", "-force", "-batch", "-"], _rename(place.value, place.host.interface))


def _take_port(place: Place) -> None:
    place.start_program(_LISTEN, "port-taken", str(place.port()))


def _leave_port(place: Place) -> None:
    place.end_program("port-taken", place.value)


FAULTS = (
    # A connect hangs until its timeout.
    _firewall(
        "port-dropped", "a firewall silently drops all packets of a port, in and out", "drop"
    ),
    # As firewalld does: `No route to host`.
    _firewall(
        "port-rejected",
        "a firewall rejects all packets of a port, in and out",
        "reject with icmpx type admin-prohibited",
    ),
    # Such as a forgotten run.
    Fault(
        "port-taken",
        "another process listens on a port",
        _take_port,
        _leave_port,
        takes="PORT",
        default=_master_port,
        loopback=True,
    ),
    # Other hosts may lack it.
    Fault(
        "second-interface",
        "a second interface is up, on a separate network",
        _add_interface,
        _remove_interface,
        takes="NAME=ADDRESS/PREFIX",
        default=_second_address,
    ),
    # As after a reboot or a new kernel.
    Fault(
        "interfaces-renamed",
        "the network interface has a new name",
        _rename_interface,
        _undo_rename,
        takes="NAME",
        default=lambda _: "wan0",
    ),
    Fault("link-down", "the network cable is pulled", _pull_cable, _plug_cable),
    Fault(
        "slow-network",
        "the host's network is limited to some Mbit/s",
        _slow_down,
        lambda place: _remove_rules(place, "slow_network"),
        takes="MBITS",
        default=lambda _: "50",
    ),
)
