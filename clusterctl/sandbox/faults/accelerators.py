"""Faults of a host's GPUs, as the fake nvidia-smi reports them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from typing_extensions import override

from clusterctl.errors import UsageError
from clusterctl.sandbox import gpus
from clusterctl.sandbox.faults.interface import Fault, Place


class _OfGpus(Fault):
    loopback = True

    @override
    def heal(self, place: Place) -> None:
        gpus.install(place.folder / "bin", place.host.gpus, host=place.host.name)

    @override
    def inject(self, place: Place) -> None:
        if place.host.gpus.count == 0:
            raise UsageError(
                f"{self.kind}: expected a host with GPUs, found none on {place.host.name}",
                hint="clusterctl sandbox up --gpus H100x8",
            )
        self._break(place)

    @abstractmethod
    def _break(self, place: Place) -> None:
        """Change what nvidia-smi shows."""


class GpuMissing(_OfGpus):
    """One GPU fewer than expected."""

    kind = "gpu-missing"
    summary = "nvidia-smi shows one GPU fewer"

    def _break(self, place: Place) -> None:
        fewer = replace(place.host.gpus, count=place.host.gpus.count - 1)
        gpus.install(place.folder / "bin", fewer, host=place.host.name)


class GpuLost(_OfGpus):
    """A GPU that fell off the bus while the driver continues."""

    kind = "gpu-lost"
    summary = "the last GPU is lost"

    def _break(self, place: Place) -> None:
        gpus.lose(place.folder / "bin", place.host.gpus, host=place.host.name)


class GpuDriverLost(_OfGpus):
    """A driver that does not match the kernel after an update."""

    kind = "gpu-driver-lost"
    summary = "nvidia-smi cannot reach the driver"

    def _break(self, place: Place) -> None:
        words = (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
            " Make sure that the latest NVIDIA driver is installed and running."
        )
        gpus.install_failing(place.folder / "bin", words, 9)


class GpuHung(_OfGpus):
    """A GPU that fell off the bus and took the driver along."""

    kind = "gpu-hung"
    summary = "nvidia-smi never answers"

    def _break(self, place: Place) -> None:
        gpus.install_hanging(place.folder / "bin")
