"""Faults of a host's storage: shared folders that are missing, replaced, or hang."""

from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.sandbox.faults import hang
from clusterctl.sandbox.faults.interface import Fault, Place


def _unmount(place: Place) -> None:
    place.run(["umount", "--lazy", place.host.shared])


def _mount_again(place: Place) -> None:
    script = 'mountpoint -q "$2" || mount --bind "$1" "$2"'
    spare = place.backend.seen(place.host, "shared")
    place.undo(["sh", "-c", script, "heal", spare, place.host.shared])


def _replace(place: Place) -> None:
    shared = place.host.shared
    place.run(["mount", "-t", "tmpfs", "-o", "size=1g,mode=1777", "elsewhere", shared])
    place.run(["mkdir", "-p", f"{shared}/code"])


def _uncover(place: Place) -> None:
    script = 'findmnt --mountpoint "$1" --source elsewhere && umount --lazy "$1"'
    place.undo(["sh", "-c", script, "heal", place.host.shared])


def _hang(place: Place) -> None:
    if not place.value.startswith("/"):
        raise UsageError(f"folder: expected an absolute path, found {place.value!r}")
    place.start_program(Path(hang.__file__).read_text(), "hung-mount", place.value)


def _end_hang(place: Place) -> None:
    place.end_program("hung-mount", place.value)
    script = 'grep -q "^hung $1 " /proc/mounts && umount --lazy --no-canonicalize "$1"'
    place.undo(["sh", "-c", script, "heal", place.value])


FAULTS = (
    # An empty folder is there, as after a reboot.
    Fault("shared-unmounted", "the shared folder is not mounted", _unmount, _mount_again),
    # It has the same folders.
    Fault(
        "shared-replaced",
        "another filesystem is mounted in place of the shared folder",
        _replace,
        _uncover,
    ),
    # Such as NFS when its server is down.
    Fault(
        "hung-mount",
        "any access to a folder hangs",
        _hang,
        _end_hang,
        takes="FOLDER",
        default=lambda place: place.host.shared,
    ),
)
