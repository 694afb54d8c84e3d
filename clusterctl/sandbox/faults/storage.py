"""Faults of a host's storage: shared folders that are missing, replaced, or hang."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import override

from clusterctl.errors import UsageError
from clusterctl.sandbox.faults import hang
from clusterctl.sandbox.faults.interface import Fault, Place


class SharedUnmounted(Fault):
    """A mount that did not come back after a reboot: an empty folder is there instead."""

    kind = "shared-unmounted"
    summary = "the shared folder is not mounted"

    @override
    def inject(self, place: Place) -> None:
        place.run(["umount", "--lazy", place.host.shared])

    @override
    def heal(self, place: Place) -> None:
        shared = place.host.shared
        script = 'mountpoint -q "$2" || mount --bind "$1" "$2"'
        spare = place.backend.seen(place.host, "shared")
        place.undo(["sh", "-c", script, "heal", spare, shared])


class SharedReplaced(Fault):
    """Another filesystem in place of the shared one, with the same folders."""

    kind = "shared-replaced"
    summary = "another filesystem is mounted in place of the shared folder"

    @override
    def inject(self, place: Place) -> None:
        shared = place.host.shared
        place.run(["mount", "-t", "tmpfs", "-o", "size=1g,mode=1777", "elsewhere", shared])
        place.run(["mkdir", "-p", f"{shared}/code"])

    @override
    def heal(self, place: Place) -> None:
        script = 'findmnt --mountpoint "$1" --source elsewhere && umount --lazy "$1"'
        place.undo(["sh", "-c", script, "heal", place.host.shared])


class HungMount(Fault):
    """A filesystem that hangs, such as NFS when its server is down."""

    kind = "hung-mount"
    summary = "any access to a folder hangs"
    takes = "FOLDER"

    @override
    def default(self, place: Place) -> str:
        return place.host.shared

    @override
    def inject(self, place: Place) -> None:
        if not place.value.startswith("/"):
            raise UsageError(f"folder: expected an absolute path, found {place.value!r}")
        place.start_program(Path(hang.__file__).read_text(), self.kind, place.value)

    @override
    def heal(self, place: Place) -> None:
        place.end_program(self.kind, place.value)
        script = 'grep -q "^hung $1 " /proc/mounts && umount --lazy --no-canonicalize "$1"'
        place.undo(["sh", "-c", script, "heal", place.value])
