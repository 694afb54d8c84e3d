"""The first process of a netns host: makes it a machine of its own, starts sshd, then reaps.

`unshare` has just made the namespaces. It is started by its path and uses the standard library
only. The host gets a root file system of its own: the machine's programs read-only, and its own
/root, /home, /tmp, /var/tmp, /run, /dev/shm, /proc, /sys, /etc/hosts and /etc/passwd.

/etc is a folder of links into the machine's, beside the host's own files: a file that is mounted
over one of the machine's would be gone as soon as that is replaced, as `useradd` does.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC = 1, 32, 4096, 16384
MNT_DETACH = 2
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1

OWN = ("root", "home", "tmp", "run", "dev", "proc", "sys", "etc", "shared", "workspace", "sandbox")
"""Top folders that are not the machine's; the last three exist on sandbox hosts only."""
MACHINE_ETC = "etc-of-the-machine"
"""At the top as /etc is, since links in it may be relative."""
ETC = ("hosts", "passwd", "group", "shadow", "hostname", "machine-id")
STAGE = Path("/run")
"""Where the new root is put together: a folder that is not itself shown to the host, or the
recursive binds would show it once more."""

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What this host shall be; the text of the one argument, as JSON."""

    name: str
    folder: str
    """The host's own folder on the machine; the host sees it as /sandbox."""
    shared: str
    """The sandbox's shared folder on the machine; the host sees it as /shared."""
    interface: str
    addresses: list[str]
    """With prefix lengths."""
    visible: list[str]
    """Folders of the machine (of the job's Python) to show again where a mount hid them."""
    sshd: list[str]


def mount(source: str, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Call the kernel's mount."""
    words = (source.encode(), os.fsencode(target), kind.encode() or None)
    if libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def bind(source: str | Path, target: Path, *, read_only: bool = False) -> None:
    """Show a folder or file of the machine at another place."""
    mount(str(source), target, flags=MS_BIND | MS_REC)
    if read_only:
        make_read_only(target)


def make_read_only(target: Path) -> None:
    """Forbid writing there, on the mounts below it too (before Linux 5.12 on this one alone)."""
    attributes = struct.pack("4Q", MOUNT_ATTR_RDONLY, 0, 0, 0)
    words = (AT_FDCWD, os.fsencode(target), AT_RECURSIVE, attributes, len(attributes))
    if libc.syscall(SYS_MOUNT_SETATTR, *words) == 0:
        return
    number = ctypes.get_errno()
    if number != errno.ENOSYS:
        raise OSError(number, f"make {target} read-only: {os.strerror(number)}")
    mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)


def build_root(spec: Spec) -> Path:
    """Put the host's root file system together and return where."""
    folder, root = Path(spec.folder), STAGE
    mount("sandbox", root, "tmpfs", data="mode=755")
    for entry in sorted(Path("/").iterdir()):
        if entry.name in OWN or entry.name == "lost+found":
            continue
        if entry.is_symlink():
            (root / entry.name).symlink_to(entry.readlink())
        elif entry.is_dir():
            (root / entry.name).mkdir()
            bind(entry, root / entry.name, read_only=True)
    for name in OWN:
        (root / name).mkdir()
    bind(folder, root / "sandbox")
    for name in ("root", "home", "tmp", "workspace"):
        bind(folder / name, root / name)
    bind(folder / "var-tmp", root / "var" / "tmp")
    bind(spec.shared, root / "shared")
    # Kept so that a fault which takes /shared away can be healed from inside.
    bind(spec.shared, root / "sandbox" / "shared")
    mount("tmpfs", root / "run", "tmpfs", data="mode=755")
    (root / "run" / "sshd").mkdir(mode=0o755)
    mount_kernel(root)
    build_etc(root, folder / "etc")
    bind(folder / "etc" / "boot_id", root / "proc" / "sys" / "kernel" / "random" / "boot_id")
    for path in spec.visible:
        show(root, Path(path))
    return root


def build_etc(root: Path, own: Path) -> None:
    """Link to what the machine's /etc has, and put the host's own files beside it."""
    (root / MACHINE_ETC).mkdir()
    bind("/etc", root / MACHINE_ETC, read_only=True)
    etc = root / "etc"
    for entry in sorted(Path("/etc").iterdir()):
        if entry.name not in ETC:
            kept = entry.readlink() if entry.is_symlink() else f"/{MACHINE_ETC}/{entry.name}"
            (etc / entry.name).symlink_to(kept)
    for name in ETC:
        (etc / name).touch()
    bind(etc, etc, read_only=True)
    for name in ETC:
        bind(own / name, etc / name)


def mount_kernel(root: Path) -> None:
    """Mount what the kernel shows: devices, processes, this network namespace's interfaces."""
    bind("/dev", root / "dev")
    (root / "dev" / "shm").mkdir(exist_ok=True)
    mount("tmpfs", root / "dev" / "shm", "tmpfs", data="mode=1777")
    mount("devpts", root / "dev" / "pts", "devpts", data="ptmxmode=0666,mode=620")
    if not (root / "dev" / "ptmx").is_symlink():
        bind(root / "dev" / "pts" / "ptmx", root / "dev" / "ptmx")
    mount("proc", root / "proc", "proc")
    mount("sysfs", root / "sys", "sysfs", MS_RDONLY)


def show(root: Path, path: Path) -> None:
    """Make a folder of the machine visible again where the host's own folders hid it."""
    place = root / path.relative_to("/")
    if place.exists() and place.samefile(path):
        return
    place.mkdir(parents=True, exist_ok=True)
    bind(path, place, read_only=True)


def enter(root: Path) -> None:
    """Make `root` this mount namespace's only file system."""
    os.chdir(root)
    subprocess.run(["pivot_root", ".", "."], check=True)
    if libc.umount2(b".", MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), "umount the machine's root")
    os.chdir("/")


def configure_network(spec: Spec) -> None:
    """Wait for the interface that the sandbox plugs in, and give it its address."""
    while spec.interface not in {name for _, name in socket.if_nameindex()}:
        time.sleep(0.002)
    batch = (
        "link set lo up",
        *address_lines(spec.addresses, spec.interface),
        f"link set {spec.interface} up",
    )
    subprocess.run(["ip", "-batch", "-"], input="\n".join(batch), text=True, check=True)


def address_lines(addresses: Iterable[str], interface: str) -> list[str]:
    """Return the `ip` commands that give an interface its addresses, usable at once."""
    return [
        f"address add {address} dev {interface}{' nodad' if ':' in address else ''}"
        for address in addresses
    ]


def main() -> None:
    """Become the host, say so on stdout, and collect whatever ends here."""
    spec = Spec(**json.loads(sys.argv[1]))
    os.write(1, b"born\n")
    socket.sethostname(spec.name)
    enter(build_root(spec))
    configure_network(spec)
    os.umask(0o022)
    with Path("/sandbox/sshd.log").open("ab") as log:
        subprocess.Popen(spec.sshd, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    os.write(1, b"ready\n")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while True:
        try:
            os.wait()
        except ChildProcessError:  # sshd and all else have been killed; the host stays up
            time.sleep(0.2)


if __name__ == "__main__":
    main()
