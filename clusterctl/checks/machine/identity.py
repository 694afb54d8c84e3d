"""Whether names, users and clocks tell the nodes apart and agree, and how long a login takes."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface

from clusterctl.checks.finding import Finding, fail, warn
from clusterctl.checks.others import medians_of_others
from clusterctl.checks.registry import Check, Facts
from clusterctl.checks.storage.run_paths import run_paths, share_of
from clusterctl.facts.nodefacts import NodeFacts
from clusterctl.inventory.cluster import Cluster

LOGIN_WARN_S = 5.0
CONNECT_WARN_S = 5.0
FEW = 4
MANY_TIMES = 3.0
"""A slow login takes at least so many times as long as that of most other nodes."""


@Check(
    "node.hostname",
    title="the nodes have different host names",
    why="NCCL treats nodes with equal host name and boot id as one machine. Without"
    " GLOO_SOCKET_IFNAME, which clusterctl sets, Gloo binds to the address of the host name.",
    fix="Give each node a name of its own with `hostnamectl set-hostname`, and in /etc/hosts"
    " the address of its network.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    explained_by=("node.same-machine",),
    required_facts=("hostname",),
)
def hostname(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Find equal names, and names that resolve to another node or to loopback."""
    named: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in facts.values():
        if node.hostname and node.boot_id and not cluster.same_machine:
            named[node.hostname, node.boot_id].append(node.node)
    for (name, _), nodes in named.items():
        if len(nodes) > 1:
            yield fail(
                tuple(nodes),
                "containers on one machine have the same host name",
                wanted="different host names",
                found=name,
                remedy="give each container its own --hostname, or set NCCL_HOSTID per node",
            )
    yield from _shared_names(facts, cluster)
    yield from _elsewhere(facts)
    env = dict(cluster.job.env)
    if env.get("GLOO_SOCKET_IFNAME", "set by us"):
        return
    for node in facts.values():
        bad = [a for a in node.hostname_addresses or () if ip_address(a.split("%")[0]).is_loopback]
        if bad and len(bad) == len(node.hostname_addresses or ()):
            yield fail(
                node.node,
                "its host name resolves to loopback, and job.env clears GLOO_SOCKET_IFNAME",
                wanted="an address that the other nodes can reach",
                found=f"{node.hostname} resolves to {', '.join(bad)}",
                remedy="remove GLOO_SOCKET_IFNAME from job.env, or correct the node's /etc/hosts",
            )


def _shared_names(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Find machines that share a name: logs and monitoring cannot tell them apart."""
    machines: dict[str, dict[str, str]] = defaultdict(dict)
    for node in facts.values():
        if node.hostname and node.boot_id and not cluster.same_machine:
            machines[node.hostname].setdefault(node.boot_id, node.node)
    for name, nodes in machines.items():
        if len(nodes) > 1:
            yield warn(
                tuple(nodes.values()),
                "several machines have the same host name",
                wanted="a host name for each machine",
                found=name,
                remedy="sudo hostnamectl set-hostname NAME (on all but one)",
            )


def _elsewhere(facts: Facts) -> Iterator[Finding]:
    """Find names that resolve to the address of another node: a copied /etc/hosts or DNS entry."""
    owner = {
        address: node.node
        for node in facts.values()
        for address in _addresses(node)
        if not address.is_loopback
    }
    for node in facts.values():
        own = _addresses(node)
        resolved = [a for text in node.hostname_addresses or () if (a := _parsed(text))]
        others = sorted({owner[a] for a in resolved if a in owner} - {node.node})
        if others and not own.intersection(resolved):
            yield warn(
                node.node,
                "its host name resolves to another node",
                wanted="an address of its own",
                found=f"{node.hostname} resolves to {', '.join(map(str, resolved))},"
                f" an address of {', '.join(others)}",
                remedy=f"getent hosts {shlex.quote(str(node.hostname))} (on the node); correct its"
                " /etc/hosts or the DNS",
            )


def _addresses(node: NodeFacts) -> set[IPv4Address | IPv6Address]:
    return {ip_interface(text).ip for i in node.interfaces or () for text in i.addresses}


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text.split("%", maxsplit=1)[0])
    except ValueError:
        return None


@Check(
    "node.machine-id",
    title="each machine has a machine id of its own",
    why="Machines that were cloned from one image with its /etc/machine-id get the same address"
    " from some DHCP servers, and mix in monitoring.",
    fix="Empty /etc/machine-id on the clones, run `systemd-machine-id-setup`, and restart them.",
    source="https://www.freedesktop.org/software/systemd/man/latest/machine-id.html",
    blocks=False,
    explained_by=("node.same-machine",),
    applies=lambda node, _cluster: node.on_systemd,
)
def machine_id(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare the ids of machines that were booted apart."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for node in facts.values():
        identity = node.machine_state.machine_id
        if identity and node.boot_id and not cluster.same_machine:
            found[identity][node.boot_id] = node.node
    for identity, boots in found.items():
        if len(boots) > 1:
            yield warn(
                tuple(boots.values()),
                "these machines have the same machine id: they were cloned",
                wanted="a machine id for each machine",
                found=f"{identity} in /etc/machine-id",
                remedy="sudo rm /etc/machine-id && sudo systemd-machine-id-setup && sudo reboot"
                " (on all but one)",
            )


@Check(
    "node.user",
    title="the user has the same uid and gid on all nodes",
    why="A shared filesystem knows users by number: what one node writes, such as a checkpoint,"
    " another could not change or even read.",
    fix="Create the user with the same uid and gid on all nodes, or use a directory service"
    " such as LDAP.",
    source="https://man7.org/linux/man-pages/man5/nfs.5.html",
    blocks=False,
    applies=lambda node, cluster: None not in _own_ids(node) and bool(cluster.shared),
)
def user_ids(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare with most other nodes that use a share; with the master if none is the most."""
    used = {
        node.name
        for node in cluster.nodes
        if any(p.role != "shared" and share_of(cluster, p.path) for p in run_paths(cluster, node))
    }
    ids = {
        name: _own_ids(node)
        for name, node in facts.items()
        if name in used and node.uid is not None and not _maps_users(node, cluster)
    }
    counts = Counter(uid for uid, _ in ids.values())
    if len(counts) < 2 and len({gid for _, gid in ids.values() if gid is not None}) < 2:  # noqa: PLR2004
        return
    usual, number = Counter(ids.values()).most_common(1)[0]
    if number == 1:
        usual = ids.get(cluster.master.name, usual)
    for name, (uid, gid) in ids.items():
        if uid != usual[0] or (None not in {gid, usual[1]} and gid != usual[1]):
            yield warn(
                name,
                "the user's uid or gid differs from the other nodes'",
                wanted=_ids(*usual),
                found=_ids(uid, gid),
                remedy=f"give {shlex.quote(facts[name].user or '$USER')} the same ids on every"
                " node, or log in as a user who has them: `user:` under `ssh:`",
            )


def _own_ids(node: NodeFacts) -> tuple[int | None, int | None]:
    return node.uid, node.machine_state.gid


def _ids(uid: int | None, gid: int | None) -> str:
    return f"uid {uid}" + ("" if gid is None else f", gid {gid}")


def _maps_users(node: NodeFacts, cluster: Cluster) -> bool:
    """Tell whether every share of a node shows its files as the user's own, as FUSE often does."""
    kinds = [path.filesystem for s in cluster.shared if (path := node.path(s)) is not None]
    return bool(kinds) and all(kind.startswith("fuse") for kind in kinds)


@Check(
    "node.time-daemon",
    title="a time daemon keeps every clock",
    why="A clock that no daemon corrects drifts by seconds in days. Then a rendezvous drops the"
    " node.",
    fix="Install chrony, or run `timedatectl set-ntp true`.",
    source="https://man7.org/linux/man-pages/man2/adjtimex.2.html",
    blocks=False,
    explained_by=("node.clock",),
    applies=lambda node, _cluster: node.machine_state.clock_synchronized is not None,
)
def time_daemon(facts: Facts) -> Iterator[Finding]:
    """Judge only if some nodes have one: in some clouds the hypervisor keeps the clocks."""
    kept = any(node.machine_state.clock_synchronized for node in facts.values())
    for node in facts.values():
        if kept and node.machine_state.clock_synchronized is False:
            yield warn(
                node.node,
                "no time daemon keeps its clock",
                wanted="a synchronized clock, as on the other nodes",
                found="the kernel reports the clock as unsynchronized",
                remedy="sudo timedatectl set-ntp true; then: timedatectl status",
            )


@Check(
    "ssh.login",
    title="a login takes little time",
    why="Each command logs in to every node. A login that takes seconds may take longer than its"
    " time limit when the node is busy.",
    fix="Find what is slow with `ssh -v HOST true`: a name server (`UseDNS`), PAM, a home on a"
    " slow server, or ~/.bashrc.",
    source="https://man.openbsd.org/sshd_config#UseDNS",
    blocks=False,
    applies=lambda node, cluster: (
        not cluster.node(node.node).local and node.machine_state.login_s is not None
    ),
)
def login(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Compare with the other nodes, and tell the connection's time from the shell's.

    Slow nodes share a finding: a name server that is away slows all of them.
    """
    nodes = [n for n in facts.values() if n.answered and not cluster.node(n.node).local]
    connects = {n.node: n.reach.connect_s for n in nodes if n.reach.connect_s is not None}
    shells = {n.node: s for n in nodes if (s := n.machine_state.login_s) is not None}
    if slow := _slow(connects, CONNECT_WARN_S):
        yield warn(
            tuple(slow),
            "its SSH server takes long to accept the login",
            wanted=f"less than {CONNECT_WARN_S:.0f} s",
            found=f"{_span(connects, slow)} before the login shell started",
            remedy="often a DNS server that does not answer: set `UseDNS no` in"
            f" /etc/ssh/sshd_config, then look at the PAM modules; ssh -vvv"
            f" {_slowest(connects, slow, cluster)} true shows the step",
        )
    if slow := _slow(shells, LOGIN_WARN_S):
        yield warn(
            tuple(slow),
            "the start files of its login shell take long",
            wanted=f"less than {LOGIN_WARN_S:.0f} s",
            found=f"{_span(shells, slow)} from the start of the shell",
            remedy="in ~/.bashrc, move slow lines, such as `conda init` and `module load`,"
            " below the test for an interactive shell; time ssh"
            f" {_slowest(shells, slow, cluster)} true measures it",
        )


def _span(seconds: dict[str, float], names: list[str]) -> str:
    """Return the shortest and the longest time: `5.4 to 9.1 s`."""
    own = [seconds[name] for name in names]
    shown = dict.fromkeys(f"{value:.1f}" for value in (min(own), max(own)))
    return f"{' to '.join(shown)} s"


def _slowest(seconds: dict[str, float], names: list[str], cluster: Cluster) -> str:
    """Return the host to try."""
    return shlex.quote(cluster.node(max(names, key=seconds.__getitem__)).host)


def _slow(seconds: dict[str, float], least: float) -> list[str]:
    """Return which take long, and many times as long as most others.

    Where all take as long, this machine may be the slow one, unless there are few.
    """
    usual = medians_of_others(seconds)
    few = len(seconds) <= FEW
    return [
        name
        for name, own in seconds.items()
        if own >= least and (few or own >= MANY_TIMES * usual[name])
    ]
