"""Small wheels for tests: a module that knows its version."""

from __future__ import annotations

import zipfile
from pathlib import Path

import uv

UV = Path(uv.__file__).parents[4] / "bin" / "uv"
"""Beside the interpreter that has the package uv; the tests' own may be another one."""


def write_wheel(
    folder: Path, name: str, version: str, *requires: str, tag: str = "py3-none-any"
) -> Path:
    """Write a wheel of one module and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(file, text)
    return path
