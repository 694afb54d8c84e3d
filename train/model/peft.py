"""PEFT without bitsandbytes, which it would import in each process wherever that is installed.

bitsandbytes brings torch's compiler along: seconds of CPU a rank. Only a base whose layers are of 4
bits already needs PEFT's own ones, and it has imported bitsandbytes. `train.model.nf4` shrinks
layers that have their adapters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["LoraConfig", "PeftModel", "get_peft_model", "without_bitsandbytes"]
NAME = "bitsandbytes"


@contextmanager
def without_bitsandbytes() -> Iterator[None]:
    """Let nothing find the package, unless it is imported already; and let PEFT look again."""
    if NAME in sys.modules:
        yield
        return
    modules: dict[str, Any] = sys.modules
    modules[NAME] = None
    try:
        yield
    finally:
        del modules[NAME]
        from peft import import_utils

        for answer in (import_utils.is_bnb_available, import_utils.is_bnb_4bit_available):
            answer.cache_clear()


with without_bitsandbytes():
    from peft import LoraConfig, PeftModel, get_peft_model
