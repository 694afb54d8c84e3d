"""The first process of a netns host: builds its file system, starts sshd, then reaps.

`unshare` has just made the namespaces. It is started by its path and uses the standard library
only. The host gets a root file system of its own: the machine's programs read-only, and its own
/root, /home, /tmp, /var/tmp, /run, /dev/shm, /proc, /sys, /etc/hosts and /etc/passwd.

/etc has links into the machine's /etc, and the host's own files. A file mounted over one of the
machine's would disappear as soon as that one is replaced, as `useradd` does.
"""

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
"""Folders in / that are the host's own; the last three exist on sandbox hosts only."""
MACHINE_ETC = "etc-of-the-machine"
"""A folder in / like /etc, since links in it may be relative."""
ETC = ("hosts", "passwd", "group", "shadow", "hostname", "machine-id")
STAGE = Path("/run")
"""Where the new root is built: a folder that the host does not see, or the recursive binds would
mount it once more."""

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """What this host should be: the program's only argument, as JSON."""

    name: str
    folder: str
    """The host's own folder on the machine; the host sees it as /sandbox."""
    shared: str
    """The sandbox's shared folder on the machine; the host sees it as /shared."""
    interface: str
    addresses: list[str]
    """With prefix lengths."""
    visible: list[str]
    """Folders of the machine (of the job's Python) to mount again where another mount hid them."""
    sshd: list[str]


def mount(source: str, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a file system; see `man 2 mount`."""
    args = (source.encode(), os.fsencode(target), kind.encode() or None)
    if libc.mount(*args, ctypes.c_ulong(flags), data.encode() or None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def bind(source: str | Path, target: Path, *, read_only: bool = False) -> None:
    """Bind mount a folder or file of the machine."""
    mount(str(source), target, flags=MS_BIND | MS_REC)
    if read_only:
        make_read_only(target)


def make_read_only(target: Path) -> None:
    """Make a mount read-only, and the mounts below it (before Linux 5.12 only this one)."""
    attributes = struct.pack("4Q", MOUNT_ATTR_RDONLY, 0, 0, 0)
    args = (AT_FDCWD, os.fsencode(target), AT_RECURSIVE, attributes, len(attributes))
    if libc.syscall(SYS_MOUNT_SETATTR, *args) == 0:
        return
    number = ctypes.get_errno()
    if number != errno.ENOSYS:
        raise OSError(number, f"make {target} read-only: {os.strerror(number)}")
    mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)


def build_root(spec: HostSpec) -> Path:
    """Build the host's root file system and return where it is."""
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
    # Mounted twice, so that a fault that unmounts /shared can be healed from inside.
    bind(spec.shared, root / "sandbox" / "shared")
    mount("tmpfs", root / "run", "tmpfs", data="mode=755")
    (root / "run" / "sshd").mkdir(mode=0o755)
    mount_kernel(root)
    build_etc(root, folder / "etc")
    bind(folder / "etc" / "boot_id", root / "proc" / "sys" / "kernel" / "random" / "boot_id")
    for path in spec.visible:
        mount_again(root, Path(path))
    return root


def build_etc(root: Path, own: Path) -> None:
    """Fill /etc with links into the machine's /etc, and with the host's own files."""
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
    """Mount /dev, /proc and /sys, which show this host's processes and interfaces only."""
    bind("/dev", root / "dev")
    (root / "dev" / "shm").mkdir(exist_ok=True)
    mount("tmpfs", root / "dev" / "shm", "tmpfs", data="mode=1777")
    mount("devpts", root / "dev" / "pts", "devpts", data="ptmxmode=0666,mode=620")
    if not (root / "dev" / "ptmx").is_symlink():
        bind(root / "dev" / "pts" / "ptmx", root / "dev" / "ptmx")
    mount("proc", root / "proc", "proc")
    mount("sysfs", root / "sys", "sysfs", MS_RDONLY)
    groups = root / "sys" / "fs" / "cgroup"
    if groups.is_dir():
        bind("/sys/fs/cgroup", groups, read_only=True)


def mount_again(root: Path, path: Path) -> None:
    """Mount a folder of the machine where the host's own folders hid it."""
    target = root / path.relative_to("/")
    if target.exists() and target.samefile(path):
        return
    target.mkdir(parents=True, exist_ok=True)
    bind(path, target, read_only=True)


def pivot_to(root: Path) -> None:
    """Make `root` the root of this mount namespace, and unmount the machine's."""
    os.chdir(root)
    subprocess.run(["pivot_root", ".", "."], check=True)
    if libc.umount2(b".", MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), "umount the machine's root")
    os.chdir("/")


def configure_network(spec: HostSpec) -> None:
    """Wait until the sandbox has made the interface, and give it its addresses."""
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
    """Become the host, report each step on stdout, and reap the processes that end."""
    spec = HostSpec(**json.loads(sys.argv[1]))
    os.write(1, b"born\n")
    socket.sethostname(spec.name)
    pivot_to(build_root(spec))
    configure_network(spec)
    os.umask(0o022)
    with Path("/sandbox/sshd.log").open("ab") as log:
        subprocess.Popen(spec.sshd, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    os.write(1, b"ready\n")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while True:
        try:
            os.wait()
        except ChildProcessError:  # sshd and all else have exited; the host stays up
            time.sleep(0.2)


if __name__ == "__main__":
    main()
