"""Whether a build of torch has code for a GPU, and whether a driver supports it."""

from __future__ import annotations

import re
from collections.abc import Collection

_CUDA = re.compile(r"(sm|compute)_(\d{1,3})(\d)([af]?)")


def supports(archs: Collection[str], device: str) -> bool:
    """Return whether code for one of these architectures runs on a GPU of another.

    NVIDIA: machine code (`sm_80`) runs on equal and later minors of its major; with the suffix
    `a` on this GPU only, with `f` within its family, which is taken as the major. PTX
    (`compute_80`) is compiled for any later GPU. AMD: only the same name.
    """
    wanted = _CUDA.fullmatch(device)
    if wanted is None:
        return device in archs
    major, minor = int(wanted[2]), int(wanted[3])
    for arch in archs:
        found = _CUDA.fullmatch(arch)
        if found is None:
            continue
        built, least = int(found[2]), int(found[3])
        if found[4] == "a":
            fits = (built, least) == (major, minor)
        elif found[1] == "compute" and not found[4]:
            fits = (built, least) <= (major, minor)
        else:
            fits = built == major and least <= minor
        if fits:
            return True
    return False


def driver_supports(cuda: str, build: str) -> bool | None:
    """Return whether a driver for up to CUDA `cuda` runs what is built with `build`.

    Within a major version every driver does; None: one of the two is not a CUDA version.
    """
    majors = [re.match(r"(\d{1,3})\.\d", text) for text in (cuda, build)]
    driver, wanted = (int(found[1]) if found else None for found in majors)
    return None if driver is None or wanted is None else driver >= wanted
