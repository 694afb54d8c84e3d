"""Virtual environments that have what a page of the documentation names, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.required import REQUIRED, is_required

_NO_REGISTRY = re.compile("Max retries|Connection|No matching distribution|Read timed out")


def install(folder: Path, *packages: str) -> Path:
    """Make an environment with what `pip install PACKAGES` installs; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    if not packages:
        return python
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(python), "install"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*pip, "--no-compile", *packages], capture_output=True, text=True, check=False, env=env
    )
    if done.returncode:
        assert _NO_REGISTRY.search(done.stderr), done.stderr
        told = f"pip cannot install {' '.join(packages)}: {done.stderr.strip()[-500:]}"
        if is_required("packages"):
            pytest.fail(f"{told} ({REQUIRED} requires it)", pytrace=False)
        pytest.skip(told)
    return python
