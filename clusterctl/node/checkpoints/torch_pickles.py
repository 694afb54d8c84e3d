"""Read pickles of torch's without torch, and without running anything that they name.

Every class is replaced by an empty one that
remembers what it is given.
"""

from __future__ import annotations

import os
import pickle
import re
import resource
from typing import Any, BinaryIO, Dict, List, Optional, Tuple

_MEMORY_LIMIT = 2 * 1024**3
"""Bytes that reading one pickle may take; the largest `.metadata` that we know need a tenth."""


class Placeholder:
    """Stands for every class that a pickle names: takes whatever is built of it, does nothing."""

    args: Tuple[Any, ...]
    state: Any

    def __new__(cls, *args: object, **_named: object) -> Placeholder:  # noqa: PYI034  (3.9 has no Self)
        """Keep what it is made of."""
        blank = object.__new__(cls)
        blank.args = args
        blank.state = {}
        return blank

    def __init__(self, *_args: object, **_named: object) -> None:
        pass  # taken in `__new__`

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        """Take it."""

    def append(self, item: object) -> None:
        """Take it."""

    def extend(self, items: object) -> None:
        """Take them."""

    @property
    def fields(self) -> Dict[str, Any]:
        """The attributes that it was given."""
        found: Dict[str, Any] = {}
        for part in self.state if isinstance(self.state, tuple) else (self.state,):
            if isinstance(part, dict):
                found.update(part)
        return found


class SafeUnpickler(pickle.Unpickler):
    """Reads one pickle after the other from a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream, encoding="latin-1")
        self.named: List[Tuple[str, str]] = []
        """Module and name of the classes and functions."""
        self.storages: Dict[str, Tuple[str, int]] = {}
        """A tensor storage's key → its class, and how many elements it has."""

    def load(self) -> Any:  # noqa: ANN401  (a pickle holds anything)
        """Read one pickle; raise MemoryError if it asks for more than any whole one needs."""
        # Nine bytes can ask for a table of sixty gigabytes, which would be filled with zeros.
        limits = resource.getrlimit(resource.RLIMIT_AS)
        most = _address_space() + _MEMORY_LIMIT
        ceiling = most if limits[1] == resource.RLIM_INFINITY else min(most, limits[1])
        resource.setrlimit(resource.RLIMIT_AS, (ceiling, limits[1]))
        try:
            return super().load()
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)

    def find_class(self, module: str, name: str) -> type:
        """Return an empty class of that name."""
        self.named.append((module, name))
        return type(name, (Placeholder,), {"__module__": module})

    def persistent_load(self, pid: object) -> None:
        """Leave tensors where they are; remember how long each must be."""
        if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage":  # noqa: PLR2004
            self.storages[str(pid[2])] = (getattr(pid[1], "__name__", ""), int(pid[4]))


def _address_space() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


_ELEMENT = {
    "double": 8, "float": 4, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "short": 2, "char": 1,
    "byte": 1, "bool": 1, "complexdouble": 16, "complexfloat": 8, "untyped": 1, "quint8": 1,
    "qint8": 1, "qint32": 4,
    "float64": 8, "float32": 4, "float16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}  # fmt: skip

DTYPES = ("bool", *(name for name in _ELEMENT if re.search(r"\d", name)))
"""dtypes of torch, by their names in a pickle."""


def element_size(name: str) -> Optional[int]:
    """Return the bytes of one element of a dtype or a storage class; None: not known."""
    return _ELEMENT.get(name[: -len("Storage")].lower() if name.endswith("Storage") else name)
