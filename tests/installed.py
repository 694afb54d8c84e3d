"""Where the clusterctl under test is installed: the wheel under `make test`, else the checkout."""

from __future__ import annotations

from pathlib import Path

import clusterctl

LOCATION = Path(clusterctl.__file__).parents[1]
