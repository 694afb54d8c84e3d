"""The hosts of a sandbox, and the names of its files and folders."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

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
    def from_json(cls, value: dict[str, Any]) -> Host:
        """Return the host that `asdict` gave; ignores unknown keys."""
        known = {field.name: value[field.name] for field in fields(cls) if field.name in value}
        known |= {k: tuple(v) for k, v in known.items() if isinstance(v, list)}
        return cls(**known | {"gpus": Gpus(**value["gpus"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The paths of one sandbox."""

    root: Path

    @classmethod
    def of(cls, name: str) -> Layout:
        """Return the layout of the sandbox of this name.

        Raises:
            UsageError: the name is no valid cluster name.
        """
        if not NAME.fullmatch(name):
            raise UsageError(
                f"sandbox name: expected [a-z0-9-]{{1,24}}, found {name!r}", hint="--name lab"
            )
        return cls(root=base() / name)

    @property
    def name(self) -> str:
        """The sandbox's name, which is also its cluster's."""
        return self.root.name

    @property
    def state(self) -> Path:
        """The description of the sandbox, written once it is up."""
        return self.root / "sandbox.json"

    @property
    def faults(self) -> Path:
        """The active faults."""
        return self.root / "faults.json"

    @property
    def inventory(self) -> Path:
        """The hosts.yaml of the sandbox."""
        return self.root / "hosts.yaml"

    @property
    def shared(self) -> Path:
        """The one folder that all hosts see as shared storage."""
        return self.root / "shared"

    @property
    def home(self) -> Path:
        """HOME of the controller's side, holding its key and known_hosts."""
        return self.root / "controller" / "home"

    @property
    def ssh(self) -> Path:
        """The controller's ~/.ssh."""
        return self.home / ".ssh"

    @property
    def key(self) -> Path:
        """The private key for root, or for the user of a loopback sandbox."""
        return self.ssh / "id_ed25519"

    def key_of(self, user: str) -> Path:
        """Return the private key of a user of netns hosts."""
        return self.key if user == ROOT else self.ssh / f"id_ed25519-{user}"

    def inventory_of(self, user: str) -> Path:
        """Return the hosts.yaml of a user other than the first."""
        return self.root / f"hosts-{user}.yaml"

    @property
    def ssh_config(self) -> Path:
        """The settings of the controller's `ssh`."""
        return self.ssh / "config"

    @property
    def bin(self) -> Path:
        """Programs that come first on the controller's PATH."""
        return self.root / "controller" / "bin"

    @property
    def controller_pid(self) -> Path:
        """Pid and start time of the process that keeps the controller's namespaces."""
        return self.root / "controller" / "pid"

    @property
    def controller_etc(self) -> Path:
        """The controller's own /etc/hosts."""
        return self.root / "controller" / "etc"

    def host(self, name: str) -> Path:
        """Return the folder of one host."""
        return self.root / "hosts" / name

    def pid(self, name: str) -> Path:
        """Return the file with the pid and start time of a host's first process."""
        return self.host(name) / "pid"
