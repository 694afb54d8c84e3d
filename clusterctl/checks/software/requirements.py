"""Whether an installed version fits what a line of requirements.txt asks for."""

import re

_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)(\.\*)?(?:\+[\w.]+)?")
"""A final release; `2.13.0+cpu` is 2.13.0. Not `2.0rc1`, whose place only pip knows."""


def fits(version: str, specifiers: str) -> bool:
    """Tell whether a version fits all of `>=2.4,<3`; what cannot be judged here counts as fit."""
    return all(_fits(version, each.strip()) for each in specifiers.split(",") if each.strip())


def _fits(version: str, specifier: str) -> bool:
    match = re.fullmatch(r"(===?|~=|!=|[<>]=?)\s*(\S+)", specifier)
    has, wanted = _NUMBERS.fullmatch(version), _NUMBERS.fullmatch(match[2]) if match else None
    if match is None or has is None or wanted is None:
        return True
    if "+" in wanted[0]:  # the build counts if it is named
        return match[1] != "==" or version.removeprefix("v") == wanted[0].removeprefix("v")
    own, other = _release(has[1]), _release(wanted[1])
    own += (0,) * (len(other) - len(own))  # 2 is 2.0
    same = own[: len(other)] == other if wanted[2] else _padded(own) == _padded(other)
    above = _padded(own) > _padded(other)
    compatible = (above or same) and own[: len(other) - 1] == other[:-1]
    return {
        "==": same,
        "===": same,
        "!=": not same,
        "~=": compatible,
        ">=": above or same,
        "<=": not above,
        ">": above and not same,
        "<": not above and not same,
    }[match[1]]


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part[:18]) for part in text.split("."))


def _padded(release: tuple[int, ...]) -> tuple[int, ...]:
    """Return it without zeros at its end: 2.4 is 2.4.0."""
    while release[-1:] == (0,):
        release = release[:-1]
    return release
