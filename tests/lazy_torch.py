"""torch for tests, imported when one first uses it: collecting tests must not wait for it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["dist", "torch"]

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
else:

    class Lazy(ModuleType):
        """Stands for a module, also where a test replaces something in it."""

        def __getattr__(self, name: str) -> object:
            if name.startswith("_"):  # pytest asks every name of a test module for some of these
                raise AttributeError(name)
            return getattr(import_module(self.__name__), name)

        def __setattr__(self, name: str, value: object) -> None:
            setattr(import_module(self.__name__), name, value)

        def __delattr__(self, name: str) -> None:
            delattr(import_module(self.__name__), name)

    torch, dist = Lazy("torch"), Lazy("torch.distributed")
