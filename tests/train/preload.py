"""What every rank of a test imports, imported once, before ranks are forked."""

from __future__ import annotations

import train.run  # noqa: F401
