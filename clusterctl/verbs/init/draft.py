"""Drafts an inventory of hosts or of a hostfile, and writes it as a hosts.yaml with comments."""

import fnmatch
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.inventory.addresses import own_user, split_login
from clusterctl.inventory.build import cluster_from_hosts
from clusterctl.inventory.cluster import Cluster, Node
from clusterctl.inventory.dump import dump, flow
from clusterctl.inventory.kinds import cluster_name
from clusterctl.inventory.load import DEFAULT, VARIABLE
from clusterctl.inventory.problems import printable
from clusterctl.inventory.sources import SLURM, load_source, slurm_cluster
from clusterctl.own_files import write_named
from clusterctl.values import dataclass

CONFIG = "~/.ssh/config"
_INCLUDES = 16
"""How deep files may include each other; as OpenSSH."""
_FILES = 256
_LINE = re.compile(r"\s*(host|include)(?:\s*=\s*|\s+)(.*)", re.IGNORECASE)
_WILD = re.compile("[*?]")


def expand_patterns(words: Sequence[str]) -> list[str]:
    """Return the words, each pattern replaced by the hosts that it fits."""
    names: list[str] | None = None
    found: list[str] = []
    for word in words:
        user, host, port = split_login(word)
        if not _WILD.search(host):
            found.append(word)
            continue
        if names is None:
            names = list(dict.fromkeys(_hosts(Path(CONFIG).expanduser(), 0, [])))
        fitting = [name for name in names if fnmatch.fnmatchcase(name.lower(), host.lower())]
        if not fitting:
            raise UsageError(
                f"{printable(word)}: expected a pattern that fits a Host of {CONFIG}, found"
                f" {len(names)} of them and none that fits",
                hint="a range needs no ssh_config: clusterctl init 'gpu[01-04]'",
            )
        before, after = f"{user}@" if user else "", f":{port}" if port else ""
        found += [f"{before}{name}{after}" for name in fitting]
    return found


def _hosts(path: Path, depth: int, files: list[Path]) -> Iterator[str]:
    """Yield the hosts that a file and those that it includes name, without patterns."""
    if depth > _INCLUDES or len(files) >= _FILES:
        return
    files.append(path)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return  # a file that is missing names no host
    for line in text.splitlines():
        matched = _LINE.fullmatch(line)
        if matched is None:
            continue
        try:
            words = shlex.split(matched[2], comments=True)
        except ValueError:
            continue  # ssh itself will tell
        if matched[1].lower() == "host":
            yield from (word for word in words if not _WILD.search(word) and word[:1] != "!")
        else:
            for word in words:
                for inner in _included(word):
                    yield from _hosts(inner, depth + 1, files)


def _included(word: str) -> list[Path]:
    """Return the files of a pattern; a relative one starts at ~/.ssh."""
    folder = Path(CONFIG).expanduser().parent
    pattern = str(folder / Path(word).expanduser())
    anchor = Path(pattern).anchor
    try:
        return sorted(Path(anchor).glob(pattern.removeprefix(anchor)))
    except (OSError, ValueError, RuntimeError, IndexError):
        return []


_HEAD = """\
# The machines of a cluster, how they are reached, and what runs on them.
# The first node is the master. Next: clusterctl check
"""

_OTHERS = "\n# Other keys. Without them, ssh_config and the nodes themselves decide.\n"
_OPTIONS = {
    "ssh": "# ssh: {user: ubuntu, identity: ~/.ssh/id_ed25519, jump: bastion}\n",
    "defaults": """\
# defaults: {gpus: 8, python: /opt/venv/bin/python}  # the job's interpreter
""",
    "shared": """\
# shared: [/workspace]                               # one filesystem, seen by all nodes
""",
    "network": "# network: {subnet: 10.11.7.0/24, master_port: 29600}\n",
    "job": """\
# job:
#   command: [-m, train, --config, config.yaml]
#   env: {NCCL_DEBUG: INFO}                          # recorded in clear
#   env_from: [HF_TOKEN]                             # taken from your environment, never stored
#   checkpoints: output
#   resume_args: [--resume-from-checkpoint, "{checkpoint}"]
""",
}
"""Keys that the file may have, as comments; those that it has are left out."""

_COMMENTS = {
    "workdir": "The code is mirrored here and the job runs here, on every node.",
    "shared": "One filesystem, seen by all nodes.",
    "network": "The network of the training; SSH may use another one.",
    "same_machine": "Several entries are one machine.",
}
_GPU_SIGNS = ("/dev/nvidiactl", "/dev/kfd")
_GPU_TOOLS = ("nvidia-smi", "amd-smi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An inventory to write."""

    cluster: Cluster
    identity: str | None = None
    """The private key that opens all hosts; None: as ssh finds one."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Lines of comment for a node, by its name."""
    remarks: tuple[str, ...] = ()
    """What was not taken over."""

    @property
    def reachable(self) -> Cluster:
        """The cluster as it is connected to: each node with the key."""
        return replace(
            self.cluster,
            nodes=tuple(
                node
                if node.local
                else replace(
                    node, ssh=replace(node.ssh, identity=self.identity or node.ssh.identity)
                )
                for node in self.cluster.nodes
            ),
        )

    def text(self) -> str:
        """Return the text of the hosts.yaml."""
        nodes = (
            replace(node, ssh=replace(node.ssh, identity=_of_anyone(node.ssh.identity)))
            for node in self.cluster.nodes
        )
        text = dump(replace(self.cluster, nodes=tuple(nodes)), notes=self.notes)
        if self.identity is not None:
            settings = {"identity": _of_anyone(self.identity)}
            ssh = f"ssh: {flow(settings)}  # also: user, port, jump\n"
            name = f"cluster: {self.cluster.name}\n"
            text = text.replace(name, name + ssh, 1)
        for key, comment in _COMMENTS.items():
            text = text.replace(f"\n{key}:", f"\n# {comment}\n{key}:", 1)
        present = {line.partition(":")[0] for line in text.splitlines()}
        if any(node.python for node in self.cluster.nodes):
            present.add("defaults")
        options = (text for key, text in _OPTIONS.items() if key not in present)
        return _HEAD + text + _OTHERS + "".join(options)


def draft(hosts: Sequence[str], *, name: str, identity: Path | None = None) -> Draft:
    """Return the inventory of hosts as one gives them to ssh.

    Args:
        hosts: names, addresses, ranges and patterns of ssh_config, with user and port.
        identity: the private key that opens all of them; None: as ssh finds one.

    Raises:
        InventoryError: a host or the name cannot be used.
        UsageError: the identity is no private key, or a pattern fits no host.
    """
    key = None if identity is None else _key(identity)
    for host in filter(os.path.isfile, hosts):
        raise UsageError(
            f"HOST: expected a host, found the file {host}",
            hint=f"its hosts: {shlex.join(('clusterctl', 'init', '--from', host))}\n"
            f"a host of that name: clusterctl init USER@{Path(host).name}",
        )
    return Draft(cluster=cluster_from_hosts(name, expand_patterns(hosts)), identity=key)


def from_source(
    source: str, *, name: str, group: str | None = None, identity: Path | None = None
) -> Draft:
    """Return the inventory of the hosts that something else lists.

    Args:
        source: a file, or `slurm` for the allocation of this shell.
        name: of the cluster; a hosts.yaml has its own.
        group: of an Ansible inventory; None: all hosts.
        identity: as of `draft`.

    Raises:
        InventoryError: the file has problems.
        UsageError: there is no such file, group, allocation or key.
    """
    key = None if identity is None else _key(identity)
    if source == SLURM:
        if group is not None:
            raise UsageError("--group: expected an Ansible inventory, found slurm")
        return Draft(cluster=slurm_cluster(name), identity=key)
    path = Path(source).expanduser()
    if not path.exists():
        raise UsageError(
            f"--from {source}: expected a file or slurm, found no such file",
            hint="or name the hosts: clusterctl init gpu1 gpu2",
        )
    remarks: list[str] = []
    cluster = load_source(path, name=name, group=group, notes=remarks)
    return Draft(cluster=cluster, identity=key, remarks=tuple(remarks))


def _of_anyone(identity: str | None) -> str | None:
    """Return a path below the home folder as all who share the file have it."""
    home = f"{Path.home()}/"
    path = identity and os.path.normpath(identity)
    return f"~/{path.removeprefix(home)}" if path and path.startswith(home) else path


def _key(identity: Path) -> str:
    """Return the path of a private key."""
    path = identity.expanduser().absolute()
    try:
        first = path.read_bytes()[:64]
    except OSError as error:
        raise UsageError(
            f"--identity {identity}: expected a private key, found: {error.strerror}",
            hint="ls ~/.ssh",
        ) from None
    if b"PRIVATE KEY" not in first:
        private = path.with_suffix("") if path.suffix == ".pub" else None
        raise UsageError(
            f"--identity {identity}: expected a private key, found another file",
            hint=f"--identity {private}" if private else "make one: ssh-keygen -t ed25519",
        )
    return str(path)


def completed(drafted: Draft) -> Draft:
    """Return a draft without a look at other machines: with the folder that is usual there."""
    cluster = drafted.cluster
    nodes = tuple(_completed(node, cluster.name) for node in cluster.nodes)
    return replace(drafted, cluster=replace(cluster, nodes=nodes))


def _completed(node: Node, cluster: str) -> Node:
    """Return a node with a folder for the code; this machine also with what is found on it."""
    if not node.local:
        user = node.ssh.user or own_user()
        home = "/root" if user == "root" else f"/home/{user}"
        return replace(node, workdir=node.workdir or f"{home}/clusterctl/{cluster}")
    return replace(
        node,
        workdir=node.workdir or str(Path.home() / "clusterctl" / cluster),
        gpus=node.gpus if node.gpus is not None or _has_gpus() else 0,
        python=node.python or own_interpreter(),
    )


def _has_gpus() -> bool:
    """Tell whether this machine looks as if it had GPUs, without a driver's help."""
    return any(map(os.path.exists, _GPU_SIGNS)) or any(map(shutil.which, _GPU_TOOLS))


def own_interpreter() -> str | None:
    """Return an interpreter of this machine that has torch: active, in the folder, or ours."""
    active = os.environ.get("VIRTUAL_ENV")
    candidates = [f"{active}/bin/python"] if active else []
    here = str(Path.cwd() / ".venv" / "bin" / "python")
    for python in (*candidates, here, os.path.normpath(sys.executable)):
        found = Path(python).parent.parent.glob("lib/python3*/*-packages/torch/version.py")
        if next(found, None) is not None:
            return python
    return None


def name_for(folder: Path) -> str:
    """Return a cluster's name made of a folder's."""
    return cluster_name(folder.absolute().name) or "cluster"


def expect_new(path: Path, *, overwrite: bool) -> None:
    """Refuse a file that exists, before anything is asked for its sake."""
    if not overwrite and os.path.lexists(path):
        named = os.environ.get(VARIABLE) == str(path)
        hint = f"{VARIABLE} names it; to write ./{DEFAULT}: unset {VARIABLE}\n" * named
        hint += "overwrite it: --force"
        raise UsageError(f"{path}: expected no file yet, found one", hint=hint)


def write(path: Path, text: str, *, overwrite: bool) -> None:
    """Write the file."""
    made = False
    try:
        if not overwrite:
            path.touch(exist_ok=False)
            made = True
        write_named(path, text.encode())
    except FileExistsError:
        expect_new(path, overwrite=overwrite)
        raise
    except OSError as error:
        if made:
            path.unlink(missing_ok=True)
        message = f"{path}: expected a place to write, found: {error.strerror}"
        raise UsageError(message) from error
