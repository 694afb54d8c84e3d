"""Images of samples: the text that an image processor writes for each, and their pixels.

What stands for an image in a text depends on its size alone. So tokenizing asks the image processor
with an empty image of that size, and the pixels are made when a batch needs them.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from train.data.files.bad_line import BadLine
from train.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

    from train.data.formats import Document

FILES = ("preprocessor_config.json", "processor_config.json")
"""What a model's folder has if there is an image processor for it."""
SIZES = 4096
"""Sizes of images whose text is kept."""
ORIENTATION, TURNED = 0x0112, 5
"""The key of EXIF, and its first value that means a quarter turn."""
LEAST = 8
"""An image is tried in an eighth of its size if its format can: that finds damage, too."""
READERS = 8
"""Threads that decode images, which leaves Python to the others."""
NESTED = 5
"""Dimensions of pixels that are grouped: by sample, or by the tiles of an image."""
BLANK = 64
"""Width and height of an image that weighs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An image of a sample; its pixels are not in memory."""

    content: str | bytes
    """Its path; or the file itself, if it was within the data."""
    where: str
    """The line that has it, `file:line`."""
    width: int
    height: int
    size: int
    """Bytes of its file."""
    tokens: int = 0
    """That the model sees of it; what the image processor writes around them not counted."""
    numbers: int = 0
    """Of its pixels, as the model gets them."""
    span: tuple[int, int] = (0, 0)
    """Where its text is in that of the chat."""

    @property
    def name(self) -> str:
        """Return its path, or that it is within the line."""
        return self.content if isinstance(self.content, str) else "(in the line)"


def look(content: str | bytes, where: str) -> Picture:
    """Return an image's size; a BadLine says why it cannot be used."""
    from PIL import Image

    name = f"image {content}" if isinstance(content, str) else "image"
    try:
        with Image.open(BytesIO(content) if isinstance(content, bytes) else content) as image:
            width, height = image.size
            if image.getexif().get(ORIENTATION, 1) >= TURNED:
                width, height = height, width
            image.draft("RGB", (max(1, width // LEAST), max(1, height // LEAST)))
            image.load()
        size = len(content) if isinstance(content, bytes) else Path(content).stat().st_size
    except Exception as error:  # noqa: BLE001  (each format's decoder raises its own)
        found = getattr(error, "strerror", None) or " ".join(str(error).split()) or "none"
        raise BadLine(f"{name}: expected an image that can be read, found: {found}") from None
    return Picture(content=content, where=where, width=width, height=height, size=size)


def _opened(picture: Picture) -> Image:
    """Return an image upright and in colors, as transformers loads it."""
    from PIL import Image, ImageOps

    content = picture.content
    try:
        with Image.open(BytesIO(content) if isinstance(content, bytes) else content) as image:
            found = ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # (each format's decoder raises its own)
        said = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise _changed(picture, said) from error
    if found.size != (picture.width, picture.height):
        raise _changed(picture, "{}x{}".format(*found.size))
    return found


def _changed(picture: Picture, found: str) -> ConfigError:
    wanted = f"an image of {picture.width}x{picture.height}, as when it was tokenized"
    return ConfigError(
        f"{picture.where}: image {picture.name}: expected {wanted}, found: {found}",
        hint="put the image back, or remove the token cache (tokens in output_dir, or cache_dir)",
    )


def refuse_changed(picture: Picture) -> None:
    """Refuse an image whose file is no longer there, or has another length, without opening it."""
    if isinstance(picture.content, bytes):
        return
    try:
        size = Path(picture.content).stat().st_size
    except OSError as error:
        raise _changed(picture, str(error.strerror)) from error
    if size != picture.size:
        raise _changed(picture, f"{size} bytes instead of {picture.size}")


class Vision:
    """A model's image processor, with what goes with it."""

    def __init__(self, processor: Any) -> None:
        if not hasattr(processor, "replace_image_token"):
            from transformers import __version__

            raise ConfigError(
                "name_or_path: expected an image processor that writes the text of one image "
                f"(replace_image_token), found {type(processor).__name__} of transformers "
                f"{__version__}",
                hint="pip install -U transformers",
            )
        self._processor = processor
        self._how = processor._merge_kwargs(tokenizer_init_kwargs={}, return_tensors="pt")  # noqa: SLF001
        self.mark = str(processor.image_token)
        """What a chat template writes for an image."""
        self.ids = frozenset(each for each in processor.image_token_ids if each is not None)
        """Tokens in whose places the model puts an image."""
        self.sized = lru_cache(SIZES)(self._sized)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="images")

    @cached_property
    def _marks(self) -> frozenset[str]:
        named = self._processor.tokenizer.convert_ids_to_tokens(sorted(self.ids))
        return frozenset((self.mark, *named))

    def _process(self, images: Sequence[Image]) -> tuple[dict[str, Any], list[str]]:
        nested, *_ = self._processor.prepare_inputs_layout(images=list(images))
        made, texts = self._processor._process_images(nested, **self._how["images_kwargs"])  # noqa: SLF001
        unused = {*self._processor.unused_input_names, "rows", "cols", "num_crops"}
        return {key: value for key, value in made.items() if key not in unused}, texts

    def _sized(self, width: int, height: int) -> tuple[str, int, int]:
        """Return the text of an image of this size, the tokens that are it, and its numbers."""
        from PIL import Image

        made, (text,) = self._process([Image.new("RGB", (width, height))])
        ids = self._processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens = sum(each in self.ids for each in ids)
        return text, tokens, int(made["pixel_values"].numel())

    def fill(self, document: Document, where: str, folder: Path) -> Document:
        """Return a document with the text of its images; their paths begin in a folder."""
        chat = document.chat
        if chat is None:
            if any(mark in piece.text for piece in document.pieces for mark in self._marks):
                raise BadLine(f"expected text without {self.mark}, which stands for an image")
            return document
        if others := [mark for mark in self._marks - {self.mark} if mark in chat.text]:
            raise BadLine(f"messages: expected none of the tokens of images, found {others[0]}")
        count = len(document.sources)
        if (there := chat.text.count(self.mark)) != count:
            wanted = f"{count} times {self.mark} in the chat template's text (once for each image)"
            raise BadLine(f"messages: expected {wanted}, found {there}")
        if not count:
            return document
        text, gained, end, found = "", [(0, 0)], 0, []
        for source in document.sources:
            content = source if isinstance(source, bytes) else str(folder / source)
            picture = look(content, where)
            try:
                written, tokens, numbers = self.sized(picture.width, picture.height)
            except Exception as error:  # noqa: BLE001  (each raises its own)
                size = f"{picture.width}x{picture.height}"
                raise BadLine(f"image {picture.name} of {size} is refused: {error}") from None
            at = chat.text.index(self.mark, end)
            text += chat.text[end:at]
            span = (len(text), len(text) + len(written))
            found.append(replace(picture, tokens=tokens, numbers=numbers, span=span))
            text += written
            end = at + len(self.mark)
            gained.append((end, len(text) - end))
        text += chat.text[end:]

        def moved(at: int) -> int:
            return at + next(gain for after, gain in reversed(gained) if at >= after)

        answers = tuple(
            replace(each, begin=moved(each.begin), end=moved(each.end)) for each in chat.answers
        )
        literals = tuple((moved(low), moved(high)) for low, high in chat.literals)
        chat = replace(chat, text=text, answers=answers, literals=literals)
        (piece,) = document.pieces
        return replace(
            document,
            pieces=(replace(piece, text=text, spans=chat.spans),),
            chat=chat,
            literals=literals if document.literals else (),
            pictures=tuple(found),
        )

    def inputs(self, input_ids: Any, pictures: Sequence[Picture]) -> dict[str, Any]:
        """Return what a model takes besides tokens: the pixels, and which tokens are images."""
        import torch

        found = self._pixels(pictures) if pictures else {}
        if self._processor.return_mm_token_type_ids:
            names = self._processor.model_input_names
            name = "token_type_ids" if "token_type_ids" in names else "mm_token_type_ids"
            found[name] = torch.from_numpy(np.isin(input_ids, sorted(self.ids)).astype(np.int64))
        return found

    def _pixels(self, pictures: Sequence[Picture]) -> dict[str, Any]:
        """Return the pixels of some images, each made in a thread if they do not mix."""
        import torch

        found, _ = self._process([_opened(pictures[0])])
        if len(pictures) == 1:
            return found
        if found["pixel_values"].ndim >= NESTED:  # one that pads images to the largest of a sample
            return self._process([*self._readers.map(_opened, pictures)])[0]
        others = self._readers.map(lambda each: self._process([_opened(each)])[0], pictures[1:])
        made = [found, *others]
        return {key: torch.cat([each[key] for each in made]) for key in found}

    @cache  # noqa: B019  (there is one)
    def blank(self) -> tuple[list[int], Picture]:
        """Return the tokens of an image that is nothing, for a batch that has none."""
        from PIL import Image

        file = BytesIO()
        Image.new("RGB", (BLANK, BLANK)).save(file, "PNG")
        text, *_ = self.sized(BLANK, BLANK)
        ids = self._processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        return list(ids), look(file.getvalue(), "")


def has_processor(folder: Path) -> bool:
    """Return whether a model's folder has an image processor."""
    if not any((folder / name).is_file() for name in FILES):
        return False
    try:
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and "vision_config" in about


def load(folder: Path, *, trust_remote_code: bool) -> Any:
    """Return a model's image processor with its tokenizer; any error is raised."""
    from transformers import AutoProcessor

    how: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        return AutoProcessor.from_pretrained(str(folder), **how)
    except Exception:
        if importlib.util.find_spec("torchvision"):
            raise
        return _of_images_only(folder, how)  # videos need torchvision


def _of_images_only(folder: Path, how: Mapping[str, Any]) -> Any:
    """Return an image processor without one for videos."""
    from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    kind: Any = PROCESSOR_MAPPING[type(AutoConfig.from_pretrained(str(folder), **how))]
    allow = {"check_argument_for_proper_class": lambda *_: None}
    about, _ = kind.get_processor_dict(str(folder), local_files_only=True)
    loaders = {"image_processor": AutoImageProcessor, "tokenizer": AutoTokenizer}
    parts = [
        loaders[name].from_pretrained(str(folder), **how) if name in loaders else None
        for name in kind.get_attributes()
    ]
    stills: Any = type(kind.__name__, (kind,), allow)
    return stills.from_args_and_dict(parts, about)


def packed(pictures: Sequence[Picture]) -> bytes:
    """Return the images of a sample as they are kept in a file: what they are, then their bytes."""
    about, contents = [], []
    for each in pictures:
        row = asdict(each)
        if isinstance(each.content, bytes):
            contents.append(each.content)
            row["content"] = None
        about.append(row)
    head = json.dumps(about).encode()
    return b"".join((len(head).to_bytes(8, "little"), head, *contents))


def unpacked(data: Any, at: int, *, bytes_too: bool = True) -> tuple[list[Picture], int]:
    """Return the images of a sample that begin somewhere in a file, and where the next begin."""
    begin = at + 8
    end = begin + int.from_bytes(bytes(data[at:begin]), "little")
    found = []
    for row in json.loads(bytes(data[begin:end])):
        if row["content"] is None:
            row["content"] = bytes(data[end : end + row["size"]]) if bytes_too else b""
            end += row["size"]
        found.append(Picture(**row | {"span": tuple(row["span"])}))
    return found, end
