"""Hosts as network namespaces on one bridge: own address, mounts, hostname, process tree, sshd.

Everything lives in namespaces that no file or name of the machine refers to, the bridge too: once
the processes have exited the kernel removes the rest. The machine's own network is never touched.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from ipaddress import ip_interface
from pathlib import Path
from typing import ClassVar

from clusterctl.errors import ClusterError, UsageError
from clusterctl.sandbox import host as host_program
from clusterctl.sandbox import hostfiles, processes, shells, sshd
from clusterctl.sandbox.backend import PATH, Backend, SandboxSpec, in_folder
from clusterctl.sandbox.layout import ROOT, BackendName, Host, Ip

NETWORKS = {"4": "10.77.{network}.{number}/24", "6": "fd77:0:0:{network}::{number}/64"}
"""Every sandbox has the same ones: no sandbox can see another, or the machine.

Number 0 is the nodes'. Where there are jump hosts, network N leads to the one of that number.
"""
USERS = (ROOT, "ada")
MOST_HOSTS = 200
MOST_JUMPS = 8
LINK_SECONDS = 5.0
BRIDGE = "switch"
INTERFACES = ("eth0", "enp3s0", "ens5", "eno1np0", "enp65s0f0", "bond0")
"""Names differ between hosts, as they do on real machines."""


def missing() -> str | None:
    """Return why this machine cannot make network namespaces; None when it can."""
    if not sys.platform.startswith("linux"):
        return "it needs Linux"
    if os.geteuid() != 0:
        return "it needs root"
    argv = ["unshare", "-n", "-m", "-u", "-p", "-i", "-f", "ip", "link", "set", "lo", "up"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "it needs unshare (package util-linux)"
    return done.stderr.strip() if done.returncode else None


class Netns(Backend):
    """The backend for root on Linux."""

    name: ClassVar[BackendName] = "netns"

    def plan(self, spec: SandboxSpec) -> list[Host]:
        """Return hosts node1 … on 10.77.0.11 …, and jump hosts gate1 … in front of them."""
        for option, found, most in (
            ("--nodes", spec.nodes, MOST_HOSTS),
            ("--jumps", spec.jumps, MOST_JUMPS),
        ):
            if found > most:
                raise UsageError(f"{option}: expected {most} at most, found {found}")
        for name in spec.shells:
            shells.path_of(name)
        for user in spec.users:
            hostfiles.check_user(user)

        def host(name: str, number: int, networks: tuple[str, ...]) -> Host:
            return Host(
                name=name,
                address=networks[0].partition("/")[0],
                networks=networks,
                port=22,
                users=spec.users or USERS,
                shell=spec.shells[(number - 1) % len(spec.shells)],
                interface=INTERFACES[(number - 1) % len(INTERFACES)],
                shared="/shared",
                workspace="/workspace",
                gpus=spec.gpus,
            )

        jumps = [
            replace(
                host(f"gate{number}", number, _networks(spec.ip, number, 2)),
                behind=_networks(spec.ip, (number + 1) % (spec.jumps + 1), 1),
            )
            for number in range(1, spec.jumps + 1)
        ]
        nodes = range(1, spec.nodes + 1)
        return jumps + [host(f"node{n}", n, _networks(spec.ip, 0, 10 + n)) for n in nodes]

    def begin(self, hosts: Sequence[Host]) -> None:
        """Make the controller's namespaces, with the bridge in them, and the hosts' folders."""
        self.layout.shared.chmod(0o1777)
        owner = hostfiles.accounts(hosts[0].users)[hosts[0].user]
        os.chown(self.layout.shared / "code", owner, owner)
        sshd.make_keys(self.layout.key_of(user) for user in hosts[0].users if user != ROOT)
        jumps = [host for host in hosts if host.behind]
        nodes = [host for host in hosts if not host.behind]
        sshd.write_client(self.layout)
        sshd.write_jumps(self.layout, jumps, nodes)
        networks = [ip_interface(network).network for network in hosts[0].networks]
        controller = [str(network[1]) for network in networks]
        hostfiles.write_controller(self.layout, jumps[:1] or nodes, controller)
        for number, host in enumerate(hosts, 1):
            near = hosts[number : number + 1] if number < len(jumps) else nodes
            hostfiles.write_host(self.layout, host, near, controller)
            self._configure(host, {})
        self._start_controller(f"{network[1]}/{network.prefixlen}" for network in networks)

    def _configure(self, host: Host, more: Mapping[str, str]) -> None:
        (self.layout.host(host.name) / "sshd_config").write_text(
            sshd.configuration(
                port=host.port,
                folder="/sandbox",
                environment={"PATH": self.host_environment(host)["PATH"], **more},
                listen=tuple(
                    {"::" if ":" in address else "0.0.0.0": None for address in host.addresses}  # noqa: S104  (of its own namespace)
                ),
            )
        )

    def _start_controller(self, networks: Iterable[str]) -> None:
        batch = (
            "link set lo up",
            f"link add {BRIDGE} type bridge forward_delay 0",
            *host_program.address_lines(networks, BRIDGE),
            f"link set {BRIDGE} up",
        )
        script = (
            'mount --bind "$1/hosts" /etc/hosts && printf "%s" "$2" | ip -batch - &&'
            " hostname controller && echo ready && exec sleep infinity"
        )
        argv = ["unshare", "-n", "-m", "-u", "sh", "-c", script, "controller"]
        argv += [str(self.layout.controller_etc), "\n".join(batch)]
        log = self.layout.root / "controller" / "log"
        with processes.StartingProcesses() as starting:
            pid = starting.spawn("controller", argv, environment=self._bare_environment(), log=log)
            processes.record(self.layout.controller_pid, pid)
            starting.wait_for("ready")

    def _bare_environment(self) -> dict[str, str]:
        return {"PATH": PATH, processes.STAMP: str(self.layout.root)}

    def start(self, hosts: Sequence[Host]) -> list[Host]:
        """Start the hosts' first processes, connect them to the bridge, wait for their sshd."""
        logs = [sshd.watch_log(self.layout.host(host.name) / "sshd.log") for host in hosts]
        with processes.StartingProcesses() as starting:
            pids = {host.name: self._spawn(host, starting) for host in hosts}
            starting.wait_for("born")
            self._connect_to_bridge(hosts, pids)
            starting.wait_for("ready")
        self.wait_for_links(hosts)
        self._flush_neighbors()
        for host, is_listening in zip(hosts, logs, strict=True):
            if not is_listening():
                raise _port_taken(host)
        return list(hosts)

    def listen(self, host: Host, environment: Mapping[str, str] | None = None) -> None:
        """Start a host's sshd again, as its own daemon."""
        self._configure(host, environment or {})
        is_listening = sshd.watch_log(self.layout.host(host.name) / "sshd.log")
        options = ["-E", "/sandbox/sshd.log", "-f", "/sandbox/sshd_config"]
        subprocess.run(self.on(host, [sshd.program(), *options]), check=False)
        if not is_listening():
            raise _port_taken(host)

    def _spawn(self, host: Host, starting: processes.StartingProcesses) -> int:
        folder = self.layout.host(host.name)
        (folder / "etc" / "boot_id").write_text(f"{uuid.uuid4()}\n")
        spec = {
            "name": host.name,
            "folder": str(folder),
            "shared": str(self.layout.shared),
            "interface": host.interface,
            "addresses": [*host.networks, *host.behind],
            "visible": [str(path) for path in python_folders()],
            "sshd": [sshd.program(), "-D", "-e", "-f", "/sandbox/sshd_config"],
        }
        argv = ["unshare", "-n", "-m", "-u", "-p", "-i", "-C", "-f", "--kill-child=KILL"]
        argv += [sys.executable, "-I", "-S", host_program.__file__, json.dumps(spec)]
        environment, log = self._bare_environment(), folder / "host.log"
        pid = starting.spawn(host.name, argv, environment=environment, log=log)
        processes.record(self.layout.pid(host.name), pid)
        return pid

    def _connect_to_bridge(self, hosts: Iterable[Host], pids: dict[str, int]) -> None:
        commands: list[str] = []
        for host in hosts:
            # A host whose power failed has left its interface at the bridge behind.
            self.run_ip(f"link delete {host.name}", check=False)
            commands += self.veth_commands(host.name, BRIDGE, host.interface, pids[host.name])
        self.run_ip(*commands)

    def veth_commands(self, name: str, bridge: str, interface: str, pid: int) -> tuple[str, ...]:
        """Return the `ip` commands that connect the `interface` of a host to `name` at a bridge."""
        # As on a real machine the MAC is the same after a reboot: others have it cached.
        peer = f"{interface} address {_mac(name)} netns {pid}"
        return (
            f"link add {name} type veth peer name {peer}",
            f"link set {name} master {bridge} up",
        )

    def wait_for_links(self, hosts: Iterable[Host]) -> None:
        """Wait until packets pass: the kernel notices a new link up to a second later."""
        wanted = {host.name for host in hosts}
        until = time.monotonic() + LINK_SECONDS
        argv = ["nsenter", "-t", str(self._controller_pid()), "-n", "ip", "-j", "link", "show"]
        while time.monotonic() < until:
            shown = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
            wanted -= {link["ifname"] for link in shown if link["operstate"] == "UP"}
            if not wanted:
                return
            time.sleep(0.01)
        raise ClusterError(f"no link: {', '.join(sorted(wanted))}")

    def _flush_neighbors(self) -> None:
        """Forget the ARP requests that were not answered while a host was off.

        Else a connect in the first seconds after a boot ends with EHOSTUNREACH.
        """
        pids = [self._controller_pid()]
        for folder in (self.layout.root / "hosts").iterdir():
            with suppress(ClusterError):  # this host is off
                pids.append(self.init_pid(folder.name))
        for pid in pids:
            argv = ["nsenter", "-t", str(pid), "-n", "ip", "neigh", "flush", "all"]
            subprocess.run(
                argv, capture_output=True, check=False
            )  # a host may be powered off meanwhile

    def run_ip(self, *commands: str, check: bool = True) -> None:
        """Run `ip` commands where the bridge is."""
        argv = ["nsenter", "-t", str(self._controller_pid()), "-n", "ip", "-batch", "-"]
        text = "\n".join(commands) + "\n"
        done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise ClusterError(f"ip could not do {commands}: {done.stderr.strip()}")

    def _controller_pid(self) -> int:
        pid = processes.recorded(self.layout.controller_pid)
        if pid is None:
            raise ClusterError(
                f"sandbox {self.layout.name}: its controller side has exited",
                hint=f"clusterctl sandbox down --name {self.layout.name}",
            )
        return pid

    def controller(self, argv: Sequence[str], folder: str) -> list[str]:
        """Enter the controller's namespaces; entering a mount namespace loses the folder."""
        enter = ["nsenter", "-t", str(self._controller_pid()), "-n", "-m", "-u", "-r"]
        return [*enter, *in_folder(folder, argv)]

    def on(self, host: Host, argv: Sequence[str]) -> list[str]:
        """Enter all namespaces of a host."""
        environment = (f"{name}={value}" for name, value in self.host_environment(host).items())
        return ["nsenter", "-t", str(self.init_pid(host.name)), "-a", "env", *environment, *argv]

    def seen(self, host: Host, path: str) -> str:  # noqa: ARG002  (the same on every host)
        """Return a path in the host's own folder, as the host sees it."""
        return f"/sandbox/{path}"

    def init_pid(self, name: str) -> int:
        """Return the first process of a host, as the machine numbers it."""
        unshare = processes.recorded(self.layout.pid(name))
        children = Path(f"/proc/{unshare}/task/{unshare}/children")
        pids = children.read_text().split() if unshare is not None else []
        if not pids:
            raise ClusterError(f"{name} is off", hint="clusterctl sandbox heal")
        return int(pids[0])

    def processes(self, host: Host) -> set[int]:
        """Return the processes of the host's pid namespace."""
        try:
            inode = processes.namespace(self.init_pid(host.name), "pid")
        except ClusterError:
            return set()
        return processes.in_namespaces("pid", {inode}) if inode is not None else set()

    def power_off(self, host: Host) -> None:
        """Cut the link first, so that not even a FIN gets out, then kill the first process."""
        self.run_ip(f"link set {host.name} down")
        unshare = processes.recorded(self.layout.pid(host.name))
        if unshare is not None:
            # The rest of the pid namespace ends with its first process, before wait returns.
            os.kill(self.init_pid(host.name), signal.SIGKILL)
            processes.end(lambda: {unshare})

    def end(self) -> set[int]:
        """Kill every process with the sandbox's stamp, and all in the same namespaces."""
        machine = {kind: processes.namespace(os.getpid(), kind) for kind in ("net", "pid")}
        with ExitStack() as opened:
            # Kept open until the end: the kernel gives a freed number to the next namespace, and
            # that may be another sandbox's.
            inodes: dict[str, set[int]] = {kind: set() for kind in machine}
            for pid in processes.stamped(self.layout.root):
                for kind, found in inodes.items():
                    with suppress(OSError):  # it has just exited
                        handle = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
                        opened.callback(os.close, handle)
                        found.add(os.fstat(handle).st_ino)

            def ours() -> set[int]:
                found = processes.stamped(self.layout.root)
                for kind, members in inodes.items():
                    found |= processes.in_namespaces(kind, members - {machine[kind]})
                return found

            return processes.end(ours)


def _port_taken(host: Host) -> ClusterError:
    return ClusterError(f"{host.name}: port {host.port} is taken by another process")


def _networks(ip: Ip, network: int, number: int) -> tuple[str, ...]:
    """Return the addresses of a machine, with the lengths of their prefixes."""
    patterns = NETWORKS.values() if ip == "both" else [NETWORKS[ip]]
    return tuple(str(ip_interface(p.format(network=network, number=number))) for p in patterns)


def python_folders() -> list[Path]:
    """Return the folders that the running Python needs, so that hosts have it at the same path."""
    folders = {Path(sys.prefix), Path(sys.base_prefix)}
    link = Path(sys.executable)
    while link.is_symlink():
        link = Path(os.path.normpath(link.parent / link.readlink()))
        folders.add(link.parent.parent)
    # A .pth file can add the packages of another environment.
    folders |= {Path(f) for f in sys.path if Path(f).name in {"site-packages", "dist-packages"}}
    folders |= {folder.resolve() for folder in folders}
    folders -= {Path("/")}
    outermost = {f for f in folders if not any(f != o and f.is_relative_to(o) for o in folders)}
    return sorted(outermost - {Path("/usr")})


def _mac(link: str) -> str:
    digest = hashlib.sha256(link.encode()).hexdigest()
    return "02:" + ":".join(digest[at : at + 2] for at in range(0, 10, 2))
