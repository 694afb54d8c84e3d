"""Builds the `Cluster` of a document or of hosts on the command line.

Applies defaults, expands ranges, puts the master first and spare nodes last.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, TypeVar

from clusterctl.inventory import rules, schema
from clusterctl.inventory.addresses import (
    default_name,
    is_here,
    own_addresses,
    own_user,
    read_host,
    split_login,
)
from clusterctl.inventory.cluster import Cluster, Job, LauncherName, Node, Ssh
from clusterctl.inventory.document import Document
from clusterctl.inventory.other_programs.allocation import Allocation, allocation
from clusterctl.inventory.problems import ArgumentProblems, Path, Plain, Problems, shown
from clusterctl.inventory.ranges import LIMIT, BadRange
from clusterctl.inventory.rules import SSH_PORT, Placed
from clusterctl.inventory.schema import read_section
from clusterctl.inventory.settings import keys_of

_SECTIONS = schema.HostsFile.keys.keys() - schema.TopSection.keys.keys()
_DEFAULTS = {name: key.default for name, key in schema.DefaultsSection.keys.items()}
S = TypeVar("S")


def cluster_from_hosts(name: str, words: Sequence[str]) -> Cluster:
    """Return the cluster of hosts in the form that ssh takes, such as `user@gpu[01-04]:2222`.

    Raises:
        InventoryError: with every word that is not a host, or is there twice.
    """
    nodes: list[dict[str, object]] = []
    lines: dict[Path, int] = {("cluster",): 0}
    for word in words:
        user, host, port = split_login(word)
        entry = {"host": host, "user": user, "port": None if port is None else Plain(port)}
        lines["nodes", len(nodes)] = len(nodes) + 1
        nodes.append({key: value for key, value in entry.items() if value is not None})
    return build(document_of(name, nodes, lines), ArgumentProblems("the command line"))


def document_of(name: str, nodes: Sequence[dict[str, object]], lines: dict[Path, int]) -> Document:
    """Return the document of hosts that come from elsewhere than a hosts.yaml.

    One host with several ports is one machine with several servers, and meant.
    """
    ports: dict[object, set[object]] = {}
    for node in nodes:
        ports.setdefault(node["host"], set()).add(node.get("port"))
    value: dict[str, object] = {"cluster": name, "nodes": list(nodes)}
    if any(len(found) > 1 for found in ports.values()):
        value["same_machine"] = "allow"
    return Document(value=value, lines=lines)


def build(
    document: Document,
    problems: Problems,
    *,
    launcher: LauncherName | None = None,
    hosts: Sequence[str] = (),
) -> Cluster:
    """Return the cluster of a document; raise InventoryError with every problem of it.

    Args:
        document: what the file has.
        problems: gets what is wrong with it.
        launcher: as `load` has it.
        hosts: as `load` has it.
    """
    value, problems.lines = document.value, document.lines
    if not isinstance(value, dict):
        problems.add((), wanted="a mapping with cluster: and nodes:", found=shown(value))
        hint = "an MPI hostfile is read under a name without .yaml"
        problems.end(hint=hint if isinstance(value, str) else None)
    top = read_section(
        schema.TopSection, {k: v for k, v in value.items() if k not in _SECTIONS}, (), problems
    )
    top = top or schema.TopSection(cluster="unnamed")
    ssh = _optional(Ssh, value, "ssh", problems)
    defaults = _optional(schema.DefaultsSection, value, "defaults", problems)
    network = _optional(schema.NetworkSection, value, "network", problems)
    quarantine = _optional(schema.QuarantineSection, value, "quarantine", problems)
    job = _optional(Job, value, "job", problems)
    given = Allocation(job="0", hosts=tuple(hosts)) if hosts else _allocation(problems)
    by_slurm = (launcher or job.launcher) == "slurm" or (ssh.via == "srun" and "nodes" not in value)
    if by_slurm:
        ssh = replace(ssh, via="srun")
    entries = tuple(_allocated(given) if by_slurm else _entries(value, problems))
    placed = tuple(_placed(entries, top, ssh, defaults, problems, given))
    same_machine = top.same_machine is not None
    rules.judge_nodes(placed, network, problems, same_machine=same_machine)
    rules.judge_defaults(defaults, placed, problems)
    rules.judge_job(job, problems)
    problems.raise_if_any()
    return Cluster(
        name=top.cluster,
        nodes=_uniquely_named(sorted(placed, key=_place)),
        shared=top.shared,
        subnet=network.subnet,
        master_port=network.master_port,
        avoid_quarantined=quarantine.avoid,
        same_machine=same_machine,
        job=job,
        file=problems.file,
    )


def _optional(model: type[S], value: dict[str, object], key: str, problems: Problems) -> S:
    section = read_section(model, value[key], (key,), problems) if key in value else None
    return section or model()


def _entries(
    value: dict[str, object], problems: Problems
) -> Iterator[tuple[Path, schema.NodeSection]]:
    items = value.get("nodes")
    if not isinstance(items, list) or not items:
        found = "an empty list" if items == [] else shown(items)
        problems.add(("nodes",), wanted="a list of hosts", found=found)
        return
    hosts = 0
    for at, item in enumerate(items):
        path = ("nodes", at)
        if not isinstance(item, (str, dict)):
            problems.add(path, wanted="a host, or a mapping with host:", found=shown(item))
            continue
        # A host with no settings of its own may be written as the host alone.
        mapping = {"host": item} if isinstance(item, str) else item
        section = read_section(schema.NodeSection, mapping, path, problems)
        if section is None:
            continue
        hosts += len(section.host)
        if hosts > LIMIT:
            problems.add(("nodes",), wanted=f"at most {LIMIT} hosts", found="more")
            return
        yield path, section


def _allocation(problems: Problems) -> Allocation | None:
    try:
        return allocation()
    except BadRange as error:
        problems.add(("nodes",), wanted=error.wanted, found=error.found)
        return None


def _allocated(given: Allocation | None) -> Iterator[tuple[Path, schema.NodeSection]]:
    """Yield the nodes that Slurm chose; outside of an allocation there are none yet."""
    for host in given.hosts if given else ():
        yield ("nodes",), schema.NodeSection(host=read_host(host))


def _placed(
    entries: Iterable[tuple[Path, schema.NodeSection]],
    top: schema.TopSection,
    ssh: Ssh,
    defaults: schema.DefaultsSection,
    problems: Problems,
    given: Allocation | None,
) -> Iterator[Placed]:
    """Make a node of each host of each entry."""
    own, user = own_addresses(), own_user()
    folder = FilePath(problems.file).parent
    for path, entry in entries:
        addresses = _one_each(entry, entry.address, "address", path, problems)
        names = _one_each(entry, entry.name, "name", path, problems)
        entry_ssh = _ssh(ssh, entry, folder, given)
        settings: dict[str, Any] = {**_DEFAULTS, **vars(defaults), **vars(entry)}
        # An entry with a port or another user needs SSH: a container, a test's sshd.
        login = vars(entry)
        plain = "port" not in login and login.get("user") in (None, user)
        plain = plain and entry_ssh.via != "srun"
        for host, address, name in zip(entry.host, addresses, names, strict=True):
            local = plain and is_here(host, own)
            node = Node(
                host=host,
                name=name or default_name(host),
                ssh=Ssh() if local else entry_ssh,
                gpus=settings["gpus"],
                procs=None if settings["gpus"] else settings["procs"],
                python=settings["python"],
                workdir=entry.workdir or top.workdir,
                address=address,
                state=settings["state"],
                local=local,
                spare=entry.spare,
                source=f"{problems.file}:{problems.line(path)}",
            )
            yield Placed(path=path, section=entry, node=node)


def _one_each(
    entry: schema.NodeSection,
    values: Sequence[str] | None,
    key: str,
    path: Path,
    problems: Problems,
) -> Sequence[str | None]:
    """Return a value for each host of an entry; None for each if there is none."""
    hosts = len(entry.host)
    if values is not None and len(values) != hosts:
        words = "addresses" if key == "address" else "names"
        wanted = f"{hosts} {words}, one for each host"
        problems.add((*path, key), wanted=wanted, found=str(len(values)))
    return values if values is not None and len(values) == hosts else (None,) * hosts


def _ssh(
    common: Ssh,
    entry: schema.NodeSection,
    folder: FilePath,
    given: Allocation | None,
) -> Ssh:
    own = {key: value for key, value in vars(entry).items() if key in keys_of(Ssh)}
    merged = replace(common, **own)
    if merged.identity is not None:
        merged = replace(merged, identity=str((folder / merged.identity).absolute()))
    return replace(merged, slurm_job=given.job) if given and merged.via == "srun" else merged


def _place(one: Placed) -> tuple[bool, bool]:
    """Return what orders nodes: the master comes first, spare nodes last."""
    return one.section.spare, not one.section.master


def _uniquely_named(placed: Sequence[Placed]) -> tuple[Node, ...]:
    """Give each node a unique name: add the port to hosts that are written alike."""
    count = Counter(one.node.name.lower() for one in placed)
    named: dict[str, Node] = {}
    for one in placed:
        node, name = one.node, one.node.name
        if count[name.lower()] > 1 and one.section.name is None:
            name = f"{name}_{node.ssh.port or SSH_PORT}"
        while name in named:  # `a` at port 22 next to a host that is called `a_22`
            name += "_"
        named[name] = replace(node, name=name)
    return tuple(named.values())
