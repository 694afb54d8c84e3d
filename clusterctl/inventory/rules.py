"""Checks between the parts of an inventory that are valid by themselves."""

import ipaddress
import logging
import re
from collections import Counter
from collections.abc import Sequence

from clusterctl.inventory.addresses import normal_address
from clusterctl.inventory.cluster import Job, Node
from clusterctl.inventory.problems import Path, Problems, nearest
from clusterctl.inventory.ranges import fold_hosts
from clusterctl.inventory.schema import DefaultsSection, NetworkSection, NodeSection
from clusterctl.inventory.secret_values import is_secret
from clusterctl.inventory.wrap import wrap_problems
from clusterctl.values import dataclass

SSH_PORT = 22

logger = logging.getLogger(__name__)

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]+)\}")
_CHECKPOINT = ("checkpoint", "checkpoint_step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A node and its entry in the file."""

    path: Path
    section: NodeSection
    node: Node


def judge_nodes(
    placed: Sequence[Placed], network: NetworkSection, problems: Problems, *, same_machine: bool
) -> None:
    """Report duplicate hosts, several masters, and addresses that conflict."""
    _judge_hosts(placed, problems, same_machine=same_machine)
    _judge_names(placed, problems)
    _judge_masters(placed, problems)
    _judge_addresses(placed, network, problems, same_machine=same_machine)
    for path, section in {one.path: one.section for one in placed}.items():
        if section.gpus and section.procs:
            found = f"gpus: {section.gpus}"
            problems.add((*path, "procs"), wanted="procs only with gpus: 0", found=found)


def judge_defaults(defaults: DefaultsSection, placed: Sequence[Placed], problems: Problems) -> None:
    """Warn about a default that no node takes, because every entry sets the key itself."""
    for key, value in vars(defaults).items():
        own = [vars(one.section).get(key, value) for one in placed]
        if own and value not in own:
            place = problems.place(problems.line(("defaults", key)))
            warning = (
                "%s: defaults.%s: no node takes it, because every entry of `nodes` has its own"
            )
            logger.warning(warning, place, key)


def _judge_hosts(placed: Sequence[Placed], problems: Problems, *, same_machine: bool) -> None:
    first: dict[tuple[str, int], Placed] = {}
    machines: dict[str, Placed] = {}
    for one in placed:
        host = normal_address(one.node.host) or one.node.host.lower()
        end = first.setdefault((host, one.node.ssh.port or SSH_PORT), one)
        machine = machines.setdefault("this machine" if one.node.local else host, one)
        if end is not one:
            place = problems.place(problems.line(end.path))
            wanted, found = "each host once", f'"{one.node.host}" again (first at {place})'
        elif machine is not one and not same_machine:
            place = problems.place(problems.line(machine.path))
            wanted = "another machine (or same_machine: allow at the top)"
            found = f'"{one.node.host}", the machine of {place}'
        else:
            continue
        problems.add((*one.path, "host"), wanted=wanted, found=found)


def _judge_names(placed: Sequence[Placed], problems: Problems) -> None:
    uses = Counter(one.node.name.lower() for one in placed)
    for one in placed:
        if one.section.name is not None and uses[one.node.name.lower()] > 1:
            found = f'"{one.node.name}" twice'
            problems.add((*one.path, "name"), wanted="a name that no other node has", found=found)


def _judge_masters(placed: Sequence[Placed], problems: Problems) -> None:
    masters = [one for one in placed if one.section.master]
    for path in dict.fromkeys(one.path for one in masters if one.section.spare):
        problems.add((*path, "spare"), wanted="no spare, because it is the master", found="true")
    if placed and all(one.section.spare for one in placed):
        problems.add((*placed[0].path, "spare"), wanted="a node that is no spare", found="none")
    hosts = fold_hosts(one.node.host for one in masters)
    # Reported at each entry but the first, or at that one if it is a range.
    for path in dict.fromkeys(one.path for one in masters[1:]):
        problems.add((*path, "master"), wanted="one master", found=hosts)


def _judge_addresses(
    placed: Sequence[Placed], network: NetworkSection, problems: Problems, *, same_machine: bool
) -> None:
    subnet = ipaddress.ip_network(network.subnet) if network.subnet else None
    first: dict[str, Placed] = {}
    for one in placed:
        address = one.node.address
        if address is None:
            continue
        where = (*one.path, "address")
        if subnet is not None and ipaddress.ip_address(address) not in subnet:
            problems.add(where, wanted=f"an address in network.subnet {subnet}", found=address)
        other = first.setdefault(address, one)
        if other is not one and not same_machine:
            found = f"{address}, which {other.node.host} has"
            problems.add(where, wanted="an address of its own for each node", found=found)


def _judge_receivers(job: Job, problems: Problems) -> None:
    """Report receivers of events that nothing can be sent to."""
    for at, one in enumerate(job.notify):
        if bool(one.command) == bool(one.webhook_from):
            found = "both" if one.command else "nothing"
            problems.add(("job", "notify", at), wanted="command or webhook_from", found=found)
        if not one.on and one.every is None:
            problems.add(("job", "notify", at), wanted="on or every", found="nothing")


def judge_job(job: Job, problems: Problems) -> None:
    """Report contradictions in the job, and warn about values that look like secrets."""
    in_env = {name for name, _ in job.env}
    for at, name in enumerate(job.env_from):
        if name in in_env:
            found = f"{name} in env, too"
            problems.add(("job", "env_from", at), wanted="a variable once", found=found)
    _judge_receivers(job, problems)
    for wanted, found in wrap_problems(job.wrap):
        problems.add(("job", "wrap"), wanted=wanted, found=found)
    for at, word in enumerate(job.resume_args):
        for name in _PLACEHOLDER.findall(word):
            if name not in _CHECKPOINT and nearest(name, _CHECKPOINT):
                problems.add(("job", "resume_args", at), wanted="{checkpoint}", found=f"{{{name}}}")
    for name, text in job.env:
        if is_secret(name, text):
            place = problems.place(problems.line(("job", "env", name)))
            warning = (
                "%s: job.env.%s: looks like a secret, and env is recorded in clear"
                " (hint: env_from: [%s])"
            )
            logger.warning(warning, place, name, name)
