"""Tell a whole safetensors file from a cut one by its header; it has no checksums."""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Dict, List, Tuple

from clusterctl.node.checkpoints.torch_zip import Invalid

SUFFIX = ".safetensors"
_LIMIT = 100 * 1024 * 1024
_LENGTH = struct.Struct("<Q")
_LARGEST = 1 << 63
"""Elements of a tensor; the library itself takes no more."""
_ABOUT = "__metadata__"
_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


def check_safetensors(path: str) -> List[str]:
    """Check that all tensors are as long as their shapes and fill the file; return their names."""
    name = os.path.basename(path)
    size = os.path.getsize(path)
    with open(path, "rb") as stream:
        start = stream.read(_LENGTH.size)
        length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else _LIMIT + 1
        if length > _LIMIT:
            raise Invalid("%s has no safetensors header" % name)
        text = stream.read(length)
    try:
        header = json.loads(text, object_pairs_hook=_no_twins)
        about = header.pop(_ABOUT, {})
        if not all(isinstance(value, str) for value in about.values()):
            raise ValueError(_ABOUT)  # noqa: TRY301
        tensors = [(key, *_span(tensor)) for key, tensor in header.items()]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise Invalid("%s has a broken safetensors header" % name) from error
    at = 0
    for key, begin, end, wanted in sorted(tensors, key=lambda tensor: tensor[1:3]):
        if begin != at or end - begin != wanted:
            message = "%s has a broken safetensors header: tensor %s is not as long as its shape"
            raise Invalid(message % (name, key))
        at = end
    wanted = _LENGTH.size + length + at
    if size != wanted:
        raise Invalid("%s has %d bytes, its header says %d" % (name, size, wanted))
    return [tensor[0] for tensor in tensors]


def _no_twins(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _span(tensor: Dict[str, Any]) -> Tuple[int, int, int]:
    """Return where a tensor begins and ends, and how many bytes it must have."""
    if set(tensor) != {"dtype", "shape", "data_offsets"}:
        raise ValueError("other fields")
    begin, end = tensor["data_offsets"]
    count = 1
    for dimension in tensor["shape"]:
        if type(dimension) is not int or dimension < 0:
            raise ValueError("shape")
        count *= dimension
        if count > _LARGEST:  # as many of them would take hours to multiply
            raise ValueError("shape")
    bits = count * _BITS[tensor["dtype"]]
    if type(begin) is not int or type(end) is not int or bits % 8:
        raise ValueError("offsets")
    return begin, end, bits // 8
