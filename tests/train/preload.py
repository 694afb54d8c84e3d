"""What every rank of a test imports, imported once, before ranks are forked."""

from __future__ import annotations

from train.__main__ import uncollected

with uncollected():
    import train.run  # noqa: F401
