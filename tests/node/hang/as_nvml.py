"""NVIDIA's library as a stand-in, which is compiled here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml.c")


class StandIn:
    """Its file, and the table of what its GPUs tell."""

    def __init__(self, folder: Path, *, old: bool = False) -> None:
        """Compile it; `old`: as a driver of 2021, which has other functions."""
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler")
        self.path = folder / "libnvidia-ml.so.1"
        self.table = folder / "table"
        options = ["-DOLD"] if old else []
        argv = [compiler, "-shared", "-fPIC", *options, "-o", str(self.path), str(SOURCE)]
        subprocess.run(argv, check=True)

    def tell(self, *rows: str) -> None:
        """Replace what its GPUs tell, a row each."""
        new = self.table.with_suffix(".new")
        new.write_text("".join(row + "\n" for row in rows))
        new.rename(self.table)
