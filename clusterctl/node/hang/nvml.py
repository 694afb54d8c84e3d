"""Reads what NVIDIA's GPUs do, from the driver's own library (NVML), by ctypes.

A call into a wedged driver may never return, so only children call this. Drivers differ in the
functions that they have, and GPUs in what they tell: what is missing is None.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint, c_ulonglong, c_void_p
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

LIBRARY = "libnvidia-ml.so.1"
MOST_GPUS, MOST_PROCESSES = 64, 256
_SUCCESS = 0
_OF_GPU = 0
"""Which temperature: NVML_TEMPERATURE_GPU."""
_UUID_SIZE = 96


class Gpu(NamedTuple):
    """What a GPU does. One in MIG mode has no figures of its use."""

    number: int
    uuid: str
    busy: Optional[int]
    """Percent of the last second or less in which a kernel ran."""
    moving: Optional[int]
    """Percent of that time in which its memory was read or written."""
    milliwatts: Optional[int]
    celsius: Optional[int]
    slowed: Optional[int]
    """Bits of why its clocks are low, as in nvml.h."""
    pids: Optional[List[int]]
    """The processes that compute on it, as the driver numbers them: a container has others."""
    memory_used: Optional[int] = None
    """Bytes, by any process."""
    memory_total: Optional[int] = None


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _Process(ctypes.Structure):
    """`nvmlProcessInfo_t` of the functions whose names end in _v2 and _v3."""

    _fields_ = (("pid", c_uint), ("used", c_ulonglong), ("instance", c_uint), ("part", c_uint))


def read() -> Optional[List[Dict[str, Any]]]:
    """Return a `Gpu` of each that answers, as JSON carries it; None: there is no driver."""
    try:
        nvml = _Nvml(ctypes.CDLL(LIBRARY))
    except OSError:
        return None
    return nvml.gpus()


class _Nvml:
    """The library, initialized for as long as this process lives."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        if not self._call(["nvmlInit_v2"]):
            raise OSError

    def gpus(self) -> List[Dict[str, Any]]:
        count = c_uint()
        if not self._call(["nvmlDeviceGetCount_v2"], byref(count)):
            return []
        found = []
        for index in range(min(count.value, MOST_GPUS)):
            device = c_void_p()
            # One that fell off the bus has no handle.
            if self._call(["nvmlDeviceGetHandleByIndex_v2"], c_uint(index), byref(device)):
                found.append(self._gpu(index, device)._asdict())
        return found

    def _gpu(self, index: int, device: c_void_p) -> Gpu:
        memory = _Memory()
        sized = self._call(["nvmlDeviceGetMemoryInfo"], device, byref(memory))
        use, uuid = _Utilization(), ctypes.create_string_buffer(_UUID_SIZE)
        told = self._call(["nvmlDeviceGetUtilizationRates"], device, byref(use))
        self._call(["nvmlDeviceGetUUID"], device, uuid, c_uint(_UUID_SIZE))
        reasons = [
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",  # its name before driver 535
        ]
        return Gpu(
            index,
            uuid.value.decode("ascii", "replace"),
            use.gpu if told else None,
            use.memory if told else None,
            self._number(["nvmlDeviceGetPowerUsage"], c_uint(), device),
            self._number(["nvmlDeviceGetTemperature"], c_uint(), device, c_uint(_OF_GPU)),
            self._number(reasons, c_ulonglong(), device),
            self._pids(device),
            memory.used if sized else None,
            memory.total if sized else None,
        )

    def _number(self, names: Sequence[str], found: Any, *given: Any) -> Optional[int]:  # noqa: ANN401
        return found.value if self._call(names, *given, byref(found)) else None

    def _pids(self, device: c_void_p) -> Optional[List[int]]:
        names = ["nvmlDeviceGetComputeRunningProcesses" + version for version in ("_v3", "_v2")]
        count, table = c_uint(MOST_PROCESSES), (_Process * MOST_PROCESSES)()
        if not self._call(names, device, byref(count), table):
            return None
        return [one.pid for one in table[: min(count.value, MOST_PROCESSES)]]

    def _call(self, names: Sequence[str], *given: Any) -> bool:  # noqa: ANN401
        """Call the first of these functions that this driver has; tell whether it answered."""
        found = (getattr(self._library, name, None) for name in names)
        function = next(filter(None, found), None)
        return function is not None and function(*given) == _SUCCESS
