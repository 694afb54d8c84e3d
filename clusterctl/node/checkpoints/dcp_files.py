"""Check a torch distributed checkpoint: what `.metadata` says against the shards next to it.

`.metadata` is a pickle that nothing sums up; but
it says of every tensor its shape, its dtype and where its bytes are, which must all fit together
and fit the shards, where each item is a zip of its own with checksums.
"""

from __future__ import annotations

import io
import os
import pickle
from math import prod
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from clusterctl.node.checkpoints.torch_pickles import (
    DTYPES,
    Placeholder,
    SafeUnpickler,
    element_size,
)
from clusterctl.node.checkpoints.torch_zip import (
    CHUNK,
    ZIP_MAGIC,
    Invalid,
    NoChecksum,
    Progress,
    Window,
    check_zip,
)

METADATA = ".metadata"
_IN_METADATA = "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta "
_IN_METADATA += "TensorProperties TensorStorageMetadata _MEM_FORMAT_ENCODING"
_KNOWN = frozenset(
    {
        *("torch.distributed.checkpoint.metadata." + name for name in _IN_METADATA.split()),
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "torch.serialization._get_layout",
        "torch.Size",
        "pathlib.PosixPath",
        "pathlib._local.PosixPath",  # Python 3.13
        "collections.OrderedDict",
    }
)
"""What torch 2 names in a `.metadata`, in addition to dtypes."""
_SAFETENSORS = ".safetensors"


class SavedItem(NamedTuple):
    """Where the bytes of one tensor's chunk, or of one object, are."""

    name: str
    file: str
    offset: int
    length: int
    size: Optional[int]
    """Bytes of the tensor; None: an object, or a dtype that is not known."""
    plain: bool
    """Written as it is, not packed further."""


class SavePlan(NamedTuple):
    """What a `.metadata` says."""

    items: List[SavedItem]
    doubts: List[str]


def check_dcp(folder: str, *, content: bool, progress: Progress) -> Tuple[List[str], str]:
    """Check a torch distributed checkpoint.

    Returns:
        What nothing proves, and why it may be two saves that are mixed (empty: no sign of that).
    """
    metadata = os.path.join(folder, METADATA)
    if not os.path.isfile(metadata):
        words = "%s is missing: it was not written to its end, or rank 0 wrote it on another node"
        raise Invalid(words % METADATA)
    plan = read_metadata(metadata, progress)
    doubts, mixed = list(plan.doubts), ""
    saved = os.path.getmtime(metadata)
    unproven: Set[str] = set()
    for item in plan.items:
        progress(0)
        shard = os.path.join(folder, item.file)
        if not os.path.isfile(shard):
            raise Invalid("%s is missing" % item.file)
        size = os.path.getsize(shard)
        if size < item.offset + item.length:
            message = "%s has %d bytes, expected %d"
            raise Invalid(message % (item.file, size, item.offset + item.length))
        if os.path.getmtime(shard) > saved + 1 and not mixed:
            # A copy that keeps no times looks the same.
            mixed = "%s is newer than %s: a copy, or two saves that are mixed"
            mixed %= (item.file, METADATA)
        if content and not _check_item(shard, item, progress):
            unproven.add(item.file)
    if unproven:
        doubts.append("structure read, content not checksummed: %s" % ", ".join(sorted(unproven)))
    return doubts, mixed


def _check_item(shard: str, item: SavedItem, progress: Progress) -> bool:
    """Return whether an item's content is proven; raise Invalid if it is changed."""
    name = os.path.basename(shard)
    with open(shard, "rb") as stream:
        stream.seek(item.offset)
        if stream.read(len(ZIP_MAGIC)) != ZIP_MAGIC:
            if not item.plain or item.size is None or shard.endswith(_SAFETENSORS):
                return False
            raise Invalid(
                "%s is changed: %s does not begin at byte %d" % (name, item.name, item.offset)
            )
        try:
            records = check_zip(
                Window(stream, item.offset, item.length, progress), name, content=True
            )
        except NoChecksum:
            return False
    if item.plain and item.size is not None and item.size != records.get("data/0", item.size):
        message = "%s is changed, or %s is: %s has %d bytes, expected %d"
        raise Invalid(message % (name, METADATA, item.name, records["data/0"], item.size))
    return True


def read_metadata(path: str, progress: Progress) -> SavePlan:
    """Read from a `.metadata` which bytes of which shard must be there; else raise Invalid."""
    try:
        with open(path, "rb") as file:
            stream = io.BufferedReader(Window(file, 0, os.path.getsize(path), progress), CHUNK)
            reader = SafeUnpickler(stream)
            root = reader.load()
            if stream.read(1):
                raise Invalid("%s is changed: something follows its pickle" % METADATA)  # noqa: TRY301
        fields = root.fields
        chunks = _chunks(fields["state_dict_metadata"], progress)
        items = _items(fields["storage_data"], chunks)
        _check_names(fields.get("planner_data"))
    except Invalid:
        raise
    except (pickle.UnpicklingError, EOFError, OSError, KeyError, ValueError) as error:
        raise Invalid("%s cannot be read: %s" % (METADATA, str(error) or "it is cut")) from error
    except Exception as error:  # a pickle may hold anything, and damage more than that
        message = "%s is not a torch distributed checkpoint's" % METADATA
        raise Invalid(message) from error
    names = {"%s.%s" % named for named in reader.named}
    strange = sorted(name for name in names if not _is_known(name))
    for name in strange:
        _refuse_flipped(name)
    doubts = ["structure read, content not checksummed: %s" % METADATA]
    if strange:
        doubts.append("%s names what is not known here: %s" % (METADATA, ", ".join(strange[:3])))
    return SavePlan(items, doubts)


def _is_known(name: str) -> bool:
    module, _, dtype = name.rpartition(".")
    return name in _KNOWN or (module == "torch" and element_size(dtype) is not None)


def _refuse_flipped(name: str) -> None:
    """Raise Invalid if a name is a known one but for a bit."""
    for known in (*_KNOWN, *("torch." + dtype for dtype in DTYPES)):
        one, other = name.encode("utf-8", "replace"), known.encode()
        bits = sum(bin(a ^ b).count("1") for a, b in zip(one, other))
        if len(one) == len(other) and bits == 1:
            raise Invalid("%s is changed: it names %r, not %s" % (METADATA, name, known))


_Place = Tuple[str, Optional[Tuple[int, ...]]]
"""A name, and where in the tensor a chunk begins; None: an object."""


def _chunks(metadata: Dict[str, Any], progress: Progress) -> Dict[_Place, Optional[int]]:
    """Return every expected chunk and its bytes; raise Invalid if they do not make up a tensor."""
    found: Dict[_Place, Optional[int]] = {}
    for name, one in metadata.items():
        progress(0)
        fields = one.fields
        if "chunks" not in fields:
            found[name, None] = None
            continue
        size = _size(fields["size"])
        width = element_size(_dtype(fields["properties"]))
        held = 0
        for chunk in fields["chunks"]:
            begin, sizes = _size(chunk.fields["offsets"]), _size(chunk.fields["sizes"])
            inside = all(b >= 0 and s >= 0 and b + s <= n for b, s, n in zip(begin, sizes, size))
            if not inside or not len(begin) == len(sizes) == len(size):
                raise Invalid("%s is changed: a chunk of %s lies outside of it" % (METADATA, name))
            held += prod(sizes)
            found[name, begin] = None if width is None else width * prod(sizes)
        if held != prod(size):
            message = "%s is changed: the chunks of %s have %d elements, not %d"
            raise Invalid(message % (METADATA, name, held, prod(size)))
    return found


def _items(storage: Dict[Any, Any], chunks: Dict[_Place, Optional[int]]) -> List[SavedItem]:
    """Return where each chunk is; raise Invalid if one of them is nowhere."""
    items: List[SavedItem] = []
    for index, place in storage.items():
        key, fields = index.fields, place.fields
        offset = key.get("offset")
        at = (str(key["fqn"]), None if offset is None else _size(offset))
        packed = fields.get("transform_descriptors")
        file = str(fields["relative_path"])
        if os.path.isabs(file) or ".." in file.split("/"):
            raise Invalid("%s names a file outside of the checkpoint: %s" % (METADATA, file))
        items.append(
            SavedItem(
                at[0], file, int(fields["offset"]), int(fields["length"]),
                chunks.get(at), not packed,
            )
        )  # fmt: skip
        chunks.pop(at, None)
    lost = next(iter(chunks), None)
    if lost is not None:
        raise Invalid("%s is changed: it does not say where %s is" % (METADATA, lost[0]))
    return items


def _check_names(paths: object) -> None:
    """Raise Invalid if a flat name of a nested state is not the path that it stands for."""
    for name, path in paths.items() if isinstance(paths, dict) else ():
        if isinstance(path, tuple) and name != ".".join(map(str, path)):
            raise Invalid(
                "%s is changed: %s is not %s" % (METADATA, name, ".".join(map(str, path)))
            )


def _size(value: Any) -> Tuple[int, ...]:  # noqa: ANN401  (as a pickle gave it)
    """Read a torch.Size."""
    numbers = value.args[0] if isinstance(value, Placeholder) else value
    return tuple(int(number) for number in numbers)


def _dtype(properties: Any) -> str:  # noqa: ANN401  (as a pickle gave it)
    state = properties.state
    dtype = state[0] if isinstance(state, tuple) and state else properties.fields.get("dtype")
    return getattr(dtype, "__name__", "")
