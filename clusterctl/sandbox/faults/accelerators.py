"""Faults of a host's GPUs, as the fake nvidia-smi reports them."""

from collections.abc import Callable
from dataclasses import replace

from clusterctl.errors import UsageError
from clusterctl.sandbox import gpus
from clusterctl.sandbox.faults.interface import Fault, Place

_NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    " Make sure that the latest NVIDIA driver is installed and running."
)


def _fault(kind: str, summary: str, inject: Callable[[Place], None]) -> Fault:
    def inject_on_gpus(place: Place) -> None:
        if place.host.gpus.count == 0:
            raise UsageError(
                f"{kind}: expected a host with GPUs, found none on {place.host.name}",
                hint="clusterctl sandbox up --gpus H100x8",
            )
        inject(place)

    return Fault(kind, summary, inject_on_gpus, _heal, loopback=True)


def _heal(place: Place) -> None:
    gpus.install(place.folder / "bin", place.host.gpus, host=place.host.name)


def _miss_one(place: Place) -> None:
    fewer = replace(place.host.gpus, count=place.host.gpus.count - 1)
    gpus.install(place.folder / "bin", fewer, host=place.host.name)


def _lose_one(place: Place) -> None:
    gpus.lose(place.folder / "bin", place.host.gpus, host=place.host.name)


FAULTS = (
    _fault("gpu-missing", "nvidia-smi shows one GPU fewer", _miss_one),
    _fault("gpu-lost", "the last GPU is lost", _lose_one),
    _fault(
        "gpu-driver-lost",
        "nvidia-smi cannot reach the driver",
        lambda place: gpus.install_failing(place.folder / "bin", _NO_DRIVER, 9),
    ),
    _fault(
        "gpu-hung",
        "nvidia-smi never answers",
        lambda place: gpus.install_hanging(place.folder / "bin"),
    ),
)
