"""The interface of a sandbox: start it, run commands in it, inject faults, remove it."""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from stat import S_IMODE, S_ISDIR
from typing import Any

import yaml

from clusterctl.errors import ClusterError, UsageError
from clusterctl.sandbox import cgroup, gpus, netns, sshd
from clusterctl.sandbox.backend import Backend, SandboxSpec
from clusterctl.sandbox.faults import registry
from clusterctl.sandbox.faults.interface import Place
from clusterctl.sandbox.faults.registry import ActiveFault
from clusterctl.sandbox.layout import BackendName, Host, Layout, base
from clusterctl.sandbox.loopback import Loopback
from clusterctl.sandbox.netns import Netns
from clusterctl.values import dataclass

SCHEMA = 1
BACKENDS: dict[str, type[Backend]] = {"netns": Netns, "loopback": Loopback}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A sandbox that is up."""

    layout: Layout
    backend_name: BackendName
    hosts: tuple[Host, ...]
    jumps: tuple[Host, ...] = ()
    """The jump hosts in front of them, in the order from the controller to the nodes."""
    master_port: int
    """The port that its inventory sets; a fault can occupy it."""

    @property
    def name(self) -> str:
        """Its name, and its cluster's."""
        return self.layout.name

    @property
    def inventory(self) -> Path:
        """Its hosts.yaml."""
        return self.layout.inventory

    @property
    def shared(self) -> Path:
        """Its shared folder, as this machine sees it."""
        return self.layout.shared

    @property
    def backend(self) -> Backend:
        """The backend that runs its hosts."""
        return BACKENDS[self.backend_name](self.layout)

    def host(self, name: str) -> Host:
        """Return the host of this name; raise UsageError if there is none."""
        hosts = {host.name: host for host in (*self.jumps, *self.hosts)}
        if name not in hosts:
            expected = f"expected one of {', '.join(hosts)}"
            raise UsageError(
                f"sandbox {self.name}: {expected}, found {name!r}",
                hint=f"clusterctl sandbox status --name {self.name}",
            )
        return hosts[name]

    def folder(self, name: str) -> Path:
        """Return the folder, on this machine, of a host's own files."""
        return self.layout.host(self.host(name).name)

    def command(self, argv: Sequence[str], *, cwd: str | Path | None = None) -> list[str]:
        """Return the argv that runs a command on the controller's side."""
        return self.backend.controller(argv, str(cwd or Path.cwd()))

    def environment(self) -> dict[str, str]:
        """Return the environment for `command`."""
        return self.backend.environment()

    def run(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | Path | None = None,
        **options: Any,  # noqa: ANN401  (as subprocess.run has them)
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the controller's side, and capture stdout and stderr as text."""
        environment = self.environment() | (env or {})
        return _captured(self.command(argv, cwd=cwd), env=environment, **options)

    def on(
        self,
        node: str,
        argv: Sequence[str],
        **options: Any,  # noqa: ANN401  (as subprocess.run has them)
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host as root, without SSH."""
        return _captured(self.backend.on(self.host(node), argv), **options)

    def fault(self, node: str, kind: str, value: str | None = None) -> ActiveFault:
        """Inject a fault into a host; raise ClusterError if this sandbox does not support it."""
        place = self._place(self.host(node), value or "")
        fault = registry.find(kind, node)
        if value is None:
            place = replace(place, value=fault.default(place))
        return registry.inject(self.layout, fault, place)

    def heal(self) -> list[ActiveFault]:
        """Undo all faults and return them."""
        return registry.heal(self.layout, lambda one: self._place(self.host(one.node), one.value))

    def faults(self) -> list[ActiveFault]:
        """Return the active faults."""
        return registry.active(self.layout)

    def _place(self, host: Host, value: str) -> Place:
        return Place(backend=self.backend, host=host, master_port=self.master_port, value=value)

    def to_json(self) -> dict[str, Any]:
        """Return its description and faults as JSON types."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "backend": self.backend_name,
            "inventory": str(self.inventory),
            "master_port": self.master_port,
            "hosts": [asdict(host) for host in self.hosts],
            "jumps": [asdict(host) for host in self.jumps],
            "faults": [asdict(fault) for fault in self.faults()],
        }

    def down(self) -> None:
        """Stop the sandbox and remove all of it."""
        remove(self.name)


def _captured(argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401  (as subprocess.run has them)
    settings = {"capture_output": True, "text": True, "check": False} | options
    return subprocess.run(argv, **settings)  # noqa: PLW1510


def up(name: str, spec: SandboxSpec, *, backend: BackendName | None = None) -> Sandbox:
    """Start a sandbox.

    Raises:
        UsageError: the name is in use, or the backend does not support the options.
        ClusterError: it could not be started; all of it is removed.
    """
    layout = Layout.of(name)
    if spec.nodes < 1:
        raise UsageError(f"--nodes: expected 1 or more, found {spec.nodes}")
    chosen = backend or best_backend()
    if chosen == "netns" and (why := netns.missing()):
        raise UsageError(f"the netns backend does not work here: {why}", hint="--backend loopback")
    driver = BACKENDS[chosen](layout)
    with contextlib.suppress(FileExistsError):  # the next line checks that it is a folder
        base().mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_base()
    try:
        layout.root.mkdir()
        layout.root.chmod(0o755)
    except FileExistsError:
        raise UsageError(
            f"sandbox {name} already exists", hint=f"clusterctl sandbox down --name {name}"
        ) from None
    umask = os.umask(0o022)  # ordinary users must be able to read a host's /etc
    try:
        hosts = driver.plan(spec)
        _lay_out(layout, hosts)
        driver.begin(hosts)
        for host in hosts:
            if host.gpus.count:
                gpus.install(layout.host(host.name) / "bin", host.gpus, host=host.name)
        hosts = driver.start(hosts)
        sandbox = Sandbox(
            layout=layout,
            backend_name=chosen,
            hosts=tuple(host for host in hosts if not host.behind),
            jumps=tuple(host for host in hosts if host.behind),
            master_port=driver.master_port(),
        )
        _save(sandbox)
    except BaseException:
        remove(name)
        raise
    finally:
        os.umask(umask)
    return sandbox


def best_backend() -> BackendName:
    """Return the most realistic backend that works here."""
    return "netns" if netns.missing() is None else "loopback"


def _check_base() -> None:
    """Refuse a folder of sandboxes whose files other users can change, as its programs are run."""
    folder = base()
    if not os.path.lexists(folder):
        return
    seen = folder.lstat()
    own = S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid()
    if own and not seen.st_mode & 0o022:
        return
    raise UsageError(
        f"{folder}: expected a folder that only this user may write to, found"
        f" {'a folder' if S_ISDIR(seen.st_mode) else 'no folder'} of uid {seen.st_uid},"
        f" mode {S_IMODE(seen.st_mode):o}",
        hint=f"chmod 700 {folder}" if own else "set CLUSTERCTL_SANDBOXES to another folder",
    )


def _lay_out(layout: Layout, hosts: Sequence[Host]) -> None:
    layout.shared.mkdir()
    (layout.shared / "code").mkdir()
    layout.ssh.mkdir(parents=True)
    layout.ssh.chmod(0o700)
    layout.bin.mkdir()
    for host in hosts:
        layout.host(host.name).mkdir(parents=True)
    sshd.make_keys([layout.key, *(layout.host(host.name) / "host_key" for host in hosts)])


def _save(sandbox: Sandbox) -> None:
    """Write the files that need the hosts' final ports; the state last, as it marks success."""
    layout = sandbox.layout
    sshd.write_known_hosts(layout, (*sandbox.jumps, *sandbox.hosts))
    first, *others = sandbox.hosts[0].users
    for user, file in ((first, layout.inventory), *((u, layout.inventory_of(u)) for u in others)):
        file.write_text(_hosts_yaml(sandbox, user))
    layout.state.write_text(json.dumps(sandbox.to_json(), indent=1))


def _hosts_yaml(sandbox: Sandbox, user: str) -> str:
    """Return the inventory, with this user."""
    layout, hosts, shared = sandbox.layout, sandbox.hosts, sandbox.hosts[0].shared
    by_name = sandbox.backend_name == "netns"  # loopback hosts differ in the port only
    ssh = {"user": user, "identity": str(layout.key_of(user) if by_name else layout.key)}
    if sandbox.jumps:
        ssh["jump"] = ",".join(f"{user}@{jump.name}" for jump in sandbox.jumps)
    nodes = [
        {"host": host.name}
        if by_name
        else {"host": host.address, "port": host.port, "state": host.state}
        for host in hosts
    ]
    document = {
        "cluster": layout.name,
        **({} if by_name else {"same_machine": "allow"}),
        "ssh": ssh,
        "defaults": {"gpus": hosts[0].gpus.count, "python": os.path.normpath(sys.executable)},
        "shared": [shared],
        "workdir": f"{shared}/code",
        "network": {"master_port": sandbox.master_port},
        "nodes": nodes,
    }
    if importlib.util.find_spec("torch") is None:
        document["job"] = {"launcher": "direct"}  # torchrun is part of torch
    return "# Written by `clusterctl sandbox up`.\n" + yaml.safe_dump(document, sort_keys=False)


def find(name: str = "sandbox") -> Sandbox:
    """Return the sandbox of this name, started by this or another process."""
    layout = Layout.of(name)
    _check_base()
    if not layout.root.exists():
        raise UsageError(f"no sandbox {name}", hint=f"clusterctl sandbox up --name {name}")
    try:
        document = json.loads(layout.state.read_text())
    except (OSError, ValueError):
        raise UsageError(
            f"sandbox {name} did not start fully",
            hint=f"clusterctl sandbox down --name {name}",
        ) from None
    try:
        return Sandbox(
            layout=layout,
            backend_name=document["backend"],
            master_port=document["master_port"],
            hosts=tuple(Host.from_json(host) for host in document["hosts"]),
            jumps=tuple(Host.from_json(host) for host in document["jumps"]),
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            f"sandbox {name} is of another version of clusterctl: {layout.state}:"
            f" {type(error).__name__}: {error}",
            hint=f"clusterctl sandbox down --name {name}",
        ) from error


def names() -> list[str]:
    """Return the names of this user's sandboxes, also of those that did not start fully."""
    try:
        return sorted(path.name for path in base().iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove(name: str) -> None:
    """Stop a sandbox and remove all of it, also one that is incomplete.

    Raises:
        UsageError: other users can change its files, so they are not trusted.
        ClusterError: some of its processes survive; its files stay.
    """
    _check_base()
    layout = Layout.of(name)
    left = set().union(*(backend(layout).end() for backend in BACKENDS.values()))
    if left:
        raise ClusterError(f"sandbox {name}: could not kill these processes: {sorted(left)}")
    cgroup.remove(layout)
    while layout.root.exists():
        with contextlib.suppress(FileNotFoundError):  # another process removes it, too
            shutil.rmtree(layout.root)
    if not names():
        with contextlib.suppress(OSError):  # it is removed, or has a new sandbox
            base().rmdir()
