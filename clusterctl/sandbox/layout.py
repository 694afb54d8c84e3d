"""The hosts of a sandbox, and the names of its files and folders."""

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Self

from clusterctl.errors import UsageError
from clusterctl.sandbox import processes
from clusterctl.sandbox.gpus import NONE as NO_GPUS
from clusterctl.sandbox.gpus import Gpus
from clusterctl.values import dataclass

BackendName = Literal["netns", "loopback"]
Ip = Literal["4", "6", "both"]

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,23}")
ROOT = "root"


def base() -> Path:
    """Return the folder of this user's sandboxes; never under HOME."""
    root = os.environ.get("CLUSTERCTL_SANDBOXES")
    return Path(root) if root else Path(f"/var/tmp/clusterctl-sandbox-{os.getuid()}")  # noqa: S108


def current() -> str:
    """Return the sandbox that this process runs in, else the default one."""
    root = os.environ.get(processes.STAMP)
    return Path(root).name if root else "sandbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine of the sandbox."""

    name: str
    address: str
    port: int
    users: tuple[str, ...]
    """Users that can log in; the first is the inventory's."""
    shell: str
    """Login shell, such as `dash`; `bash+noise` has rc files that print."""
    interface: str
    shared: str
    """The folder that all hosts share, as the host sees it."""
    workspace: str
    """A folder that only this host has, as the host sees it."""
    state: str | None = None
    """The folder for node state if hosts share /var/tmp."""
    gpus: Gpus = NO_GPUS
    """The GPUs that the fake nvidia-smi shows."""
    networks: tuple[str, ...] = ()
    """With netns: its addresses with prefix lengths; `address` is the first."""
    behind: tuple[str, ...] = ()
    """For a jump host: its addresses on the network behind it."""

    @property
    def user(self) -> str:
        """The user that the inventory logs in as."""
        return self.users[0]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of its name."""
        return tuple(network.partition("/")[0] for network in self.networks) or (self.address,)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the host that `asdict` gave; ignores unknown keys."""
        known = {field.name: value[field.name] for field in fields(cls) if field.name in value}
        known |= {k: tuple(v) for k, v in known.items() if isinstance(v, list)}
        return cls(**known | {"gpus": Gpus(**value["gpus"])})


class Layout:
    """The paths of one sandbox."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = root.name
        """The sandbox's name, which is also its cluster's."""
        self.state = root / "sandbox.json"
        """The description of the sandbox, written once it is up."""
        self.faults = root / "faults.json"
        """The active faults."""
        self.inventory = root / "hosts.yaml"
        self.shared = root / "shared"
        """The one folder that all hosts see as shared storage."""
        self.home = root / "controller" / "home"
        """HOME of the controller's side, holding its key and known_hosts."""
        self.ssh = self.home / ".ssh"
        self.key = self.ssh / "id_ed25519"
        """The private key for root, or for the user of a loopback sandbox."""
        self.ssh_config = self.ssh / "config"
        """The settings of the controller's `ssh`."""
        self.bin = root / "controller" / "bin"
        """Programs that come first on the controller's PATH."""
        self.controller_pid = root / "controller" / "pid"
        """Pid and start time of the process that keeps the controller's namespaces."""
        self.controller_etc = root / "controller" / "etc"
        """The controller's own /etc/hosts."""

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the layout of the sandbox of this name."""
        if not NAME.fullmatch(name):
            raise UsageError(
                f"sandbox name: expected [a-z0-9-]{{1,24}}, found {name!r}", hint="--name lab"
            )
        return cls(base() / name)

    def key_of(self, user: str) -> Path:
        """Return the private key of a user of netns hosts."""
        return self.key if user == ROOT else self.ssh / f"id_ed25519-{user}"

    def inventory_of(self, user: str) -> Path:
        """Return the hosts.yaml of a user other than the first."""
        return self.root / f"hosts-{user}.yaml"

    def host(self, name: str) -> Path:
        """Return the folder of one host."""
        return self.root / "hosts" / name

    def pid(self, name: str) -> Path:
        """Return the file with the pid and start time of a host's first process."""
        return self.host(name) / "pid"
