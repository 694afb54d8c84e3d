"""paramiko without Invoke, which takes as long to import as paramiko itself.

paramiko needs it for `Match exec` in ssh_config only, and OpenSSH reads that for us. Others in
this process who want it still get it.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import cast

IMPORTING = threading.RLock()
"""Held while paramiko or Fabric is imported: what the one hides meanwhile, the other needs."""


class _Later(ModuleType):
    """Stands for a module until something of it is asked for."""

    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def without_invoke() -> Iterator[None]:
    """Let the block import paramiko quickly."""
    with IMPORTING:
        if {"paramiko", "invoke"} & sys.modules.keys():
            yield
            return
        # None there makes the import fail, and paramiko is prepared for that.
        sys.modules["invoke"] = cast("ModuleType", None)
        try:
            yield
        finally:
            del sys.modules["invoke"]
            if "paramiko.config" in sys.modules:
                vars(sys.modules["paramiko.config"])["invoke"] = _Later("invoke")
