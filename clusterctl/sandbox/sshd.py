"""Configures the sshd of each host: its keys, its settings, and who may log in."""

import itertools
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from clusterctl.errors import ClusterError
from clusterctl.sandbox.backend import PATH
from clusterctl.sandbox.layout import Host, Layout

START_SECONDS = 20.0


def program() -> str:
    """Return the full path of sshd, which it must be started by."""
    found = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:/usr/bin:/opt/homebrew/sbin")
    if found is None:
        raise ClusterError(
            "sshd: expected on this machine, found none", hint="sudo apt-get install openssh-server"
        )
    return found


def make_keys(files: Iterable[Path]) -> None:
    """Make ed25519 key pairs concurrently."""
    try:
        running = [
            subprocess.Popen(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "sandbox", "-f", str(file)],
                stdin=subprocess.DEVNULL,
            )
            for file in files
        ]
    except FileNotFoundError:
        raise ClusterError(
            "ssh-keygen: expected on this machine, found none",
            hint="sudo apt-get install openssh-client",
        ) from None
    codes = [process.wait() for process in running]
    if any(codes):
        raise ClusterError("ssh-keygen could not make the sandbox's keys")


def configuration(
    *,
    port: int,
    folder: str,
    environment: Mapping[str, str],
    listen: Iterable[str],
    authorized: str | None = None,
) -> str:
    """Return an sshd_config.

    Args:
        folder: the host's own folder, as sshd sees it; holds its host key.
        environment: set for every session.
        authorized: file with the accepted keys, instead of the one in each account's home.
    """
    lines = [
        f"Port {port}",
        *(f"ListenAddress {address}" for address in listen),
        f"HostKey {folder}/host_key",
        f"PidFile {folder}/sshd.pid",
        f"StrictModes {'yes' if authorized is None else 'no'}",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "PrintMotd no",
        "UseDNS no",
        "AcceptEnv LANG LC_*",
        "Subsystem sftp internal-sftp",
        "SetEnv " + " ".join(f'{name}="{value}"' for name, value in environment.items()),
    ]
    if authorized is not None:
        lines.append(f"AuthorizedKeysFile {authorized}")
    if _version() >= (9, 8):
        # All logins come from one address: a wrong key would block the next login.
        lines.append("PerSourcePenalties no")
    return "\n".join(lines) + "\n"


@cache
def _version() -> tuple[int, int]:
    version = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False).stderr
    found = re.search(r"OpenSSH_(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def write_known_hosts(layout: Layout, hosts: Iterable[Host]) -> None:
    """Write every host's key with its name and addresses."""
    lines = []
    for host in hosts:
        key = " ".join((layout.host(host.name) / "host_key.pub").read_text().split()[:2])
        names = dict.fromkeys((host.name, *host.addresses))
        known = [n if host.port == 22 else f"[{n}]:{host.port}" for n in names]  # noqa: PLR2004
        lines.append(f"{','.join(known)} {key}\n")
    (layout.ssh / "known_hosts").write_text("".join(lines))


def write_client(layout: Layout) -> None:
    """Make an `ssh` for the controller's side that reads the sandbox's own settings.

    ssh finds its settings, keys and known hosts in the home of passwd, not of HOME. The controller
    has this machine's passwd.
    """
    layout.ssh_config.write_text(
        f"UserKnownHostsFile {layout.ssh / 'known_hosts'}\nIdentityFile {layout.key}\n"
    )
    wrapper = layout.bin / "ssh"
    wrapper.write_text(f'#!/bin/sh\nPATH="{PATH}" exec ssh -F "{layout.ssh_config}" "$@"\n')
    wrapper.chmod(0o755)


def write_jumps(layout: Layout, jumps: Sequence[Host], nodes: Sequence[Host]) -> None:
    """Add the user, the keys and the jump hosts of netns hosts to that ssh's settings."""
    lines = [f"User {nodes[0].user}", f"IdentityFile {layout.ssh}/id_ed25519-%r"]
    for before, after in itertools.pairwise([*([jump] for jump in jumps), nodes]):
        lines += [f"Host {host.name}\n  ProxyJump {before[0].name}" for host in after]
    with layout.ssh_config.open("a") as config:
        config.write("\n".join(lines) + "\n")


def watch_log(log: Path) -> Callable[[], bool]:
    """Return what waits until an sshd listens that is started next; False if its port is in use.

    It reads sshd's log because a test connection would count as a failed login. It raises
    ClusterError if sshd does not start.
    """
    return partial(_wait_until_listening, log, log.stat().st_size if log.exists() else 0)


def _wait_until_listening(log: Path, since: int) -> bool:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        text = log.read_bytes()[since:].decode(errors="replace") if log.exists() else ""
        if "Server listening on" in text:
            return True
        if "Address already in use" in text:
            return False
        if "fatal:" in text or "Bad configuration" in text:
            raise ClusterError(f"sshd did not start: {text.strip()}")
        time.sleep(0.005)
    raise ClusterError(f"sshd did not start within {START_SECONDS:.0f} s; see {log}")
