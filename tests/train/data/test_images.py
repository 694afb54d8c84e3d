"""Images in lines of data: each program's form, what is refused, where a sample is cut."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train.seeing import make_image, make_seeing
from train.config.config import Config
from train.data import dataset, images, show_sample
from train.data.chat.pictures import placed
from train.data.encoding import encode
from train.data.files.bad_line import BadLine
from train.data.formats import Reader, Rules
from train.distributed.env import RankEnv
from train.errors import ConfigError

pytestmark = pytest.mark.torch

ALONE = RankEnv(
    rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0, nodes=1, launched=False
)
PART = {"type": "image"}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a LLaVA, next to images `a.png` (40x30) and `b.jpg` (50x20)."""
    folder = tmp_path_factory.mktemp("seeing")
    make_image(folder / "a.png", 40, 30)
    make_image(folder / "b.jpg", 50, 20)
    make_seeing(folder / "model", "llava")
    return folder


@pytest.fixture(scope="module")
def tokenizer(seeing: Path) -> Any:
    return dataset.load_tokenizer(seeing / "model", config(seeing, seeing / "none"))


def config(folder: Path, data: Path, **more: Any) -> Config:
    return Config(
        name_or_path=str(folder / "model"),
        dataset_path=str(data),
        output_dir=str(data.with_suffix(".out")),
        seq_len=128,
        **more,
    )


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def ask(*content: Any) -> list[dict[str, Any]]:
    asked = content[0] if isinstance(content[0], str) else list(content)
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": "ok"}]


@pytest.mark.parametrize(
    ("messages", "column", "content", "sources"),
    [
        (ask({"type": "image", "path": "a.png"}, text("q")), [], [PART, text("q")], ["a.png"]),
        (
            ask({"type": "image_url", "image_url": {"url": "file:///a.png"}}, text("q")),
            [], [PART, text("q")], ["/a.png"],
        ),
        (ask({"type": "image", "base64": "YWI="}), [], [PART], [b"ab"]),
        (ask(text("q"), PART, PART), ["a", "b"], [text("q"), PART, PART], ["a", "b"]),
        (ask({**PART, "index": 1}, {**PART, "index": 0}), ["a", "b"], [PART, PART], ["b", "a"]),
        (ask("<image>\nq"), ["a"], [PART, text("q")], ["a"]),
        (
            ask("q <image> or\n<image>"), ["a", "b"],
            [text("q "), PART, text(" or"), PART], ["a", "b"],
        ),
        (ask("q"), ["a", "b"], [PART, PART, text("q")], ["a", "b"]),
        (ask("what is <image>?"), [], "what is <image>?", []),
    ],
)  # fmt: skip
def test_images_are_where_each_program_puts_them(
    messages: list[dict[str, Any]], column: list[Any], content: Any, sources: list[Any]
) -> None:
    made, found = placed(messages, column)
    assert made[0]["content"] == content
    assert found == sources


@pytest.mark.parametrize(
    ("messages", "column", "said"),
    [
        (ask(PART, PART), ["a"], "message 1: expected an image for each place"),
        (ask(PART), ["a", "b"], "images: expected 1, one for each place in the messages, found 2"),
        (ask({"type": "image", "url": "https://x/a.png"}), [], "download it before"),
        (ask({"type": "image", "base64": "!"}), [], "expected base64"),
    ],
)
def test_images_without_a_place_or_a_file_are_refused(
    messages: list[dict[str, Any]], column: list[Any], said: str
) -> None:
    with pytest.raises(BadLine, match=said):
        placed(messages, column)


def line(content: Any, **more: Any) -> bytes:
    asked = content if isinstance(content, list) else [content]
    return json.dumps({"messages": ask(*asked), **more}).encode()


def test_each_line_has_its_own_images(seeing: Path, tokenizer: Any) -> None:
    data = base64.b64encode((seeing / "b.jpg").read_bytes()).decode()
    reader, where = Reader(tokenizer), f"{seeing}/x.jsonl:1"
    of_dataset = {"bytes": f"data:;base64,{data}", "path": "b.jpg"}
    for images_of_line in (["a.png", of_dataset], ["a.png", f"data:image/jpeg;base64,{data}"]):
        document = reader.read(line("q <image> <image>", images=images_of_line), where)
        sizes = [(p.width, p.height, p.tokens) for p in document.pictures]
        assert sizes == [(40, 30, 4), (50, 20, 4)]
        assert document.pieces[0].text.count("<image>") == 8
        (sample,) = encode([document], tokenizer, 128)[0]
        learned = [i for i, on in zip(sample.ids, sample.loss_mask, strict=True) if on]
        assert tokenizer.decode(learned) == "ok<|im_end|>"
    asked = {"question": "q", "answer": "ok", "image": "a.png"}
    assert len(reader.read(json.dumps(asked).encode(), where).pictures) == 1
    elsewhere = Reader(tokenizer, rules=Rules(image_dir=str(seeing)))
    assert elsewhere.read(line("q", images=["a.png"]), "/far/x.jsonl:1").pictures


def test_what_cannot_be_seen_is_named(seeing: Path, tokenizer: Any, tmp_path: Path) -> None:
    whole = (seeing / "b.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "no.png").write_text("<html>")
    reader = Reader(tokenizer)
    for name, said in (
        ("cut.jpg", "image file is truncated"),
        ("no.png", "cannot identify image file"),
        ("none.png", "No such file or directory"),
    ):
        with pytest.raises(BadLine, match=said) as caught:
            reader.read(line("q", images=[name]), f"{tmp_path}/x.jsonl:7")
        assert f"image {tmp_path / name}: expected an image" in str(caught.value)
    for content, said in (
        ([text("the token <image>")], "expected 0 times <image>"),
        ([text("<image>"), {"type": "image", "path": str(seeing / "a.png")}], "found 2"),
    ):
        with pytest.raises(BadLine, match=said):
            reader.read(line(content))
    with pytest.raises(BadLine, match="expected text without <image>"):
        reader.read(b'{"text": "a <image>"}')


def test_a_photo_that_was_turned_has_its_upright_size(tmp_path: Path) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[images.ORIENTATION] = 6
    Image.new("L", (64, 32)).save(tmp_path / "turned.jpg", exif=exif)
    found = images.look(str(tmp_path / "turned.jpg"), "")
    assert (found.width, found.height) == (32, 64)
    assert images._opened(found).size == (32, 64)


def test_no_image_is_cut(seeing: Path, tokenizer: Any) -> None:
    chat = [*ask(PART, text("q")), *ask(PART, text("another"))]
    data = json.dumps({"messages": chat, "images": ["a.png", "b.jpg"]}).encode()
    document = Reader(tokenizer).read(data, f"{seeing}/x.jsonl:1")
    ((whole,),) = encode([document], tokenizer, 128)
    places = [at for at, token in enumerate(whole.ids) if token in tokenizer.vision.ids]
    first, second = places[0], places[4]
    for seq_len in range(first + 1, len(whole.ids)):
        for sample in encode([document], tokenizer, seq_len)[0]:
            seen = sum(token in tokenizer.vision.ids for token in sample.ids)
            assert seen == sum(picture.tokens for picture in sample.pictures)
            assert len(sample.ids) == (second if second < seq_len < second + 4 else seq_len)
    assert encode([document], tokenizer, first + 2) == [[]], "nothing is learned of it"
    ((dropped,),) = encode([document], tokenizer, second + 2, "drop")
    assert not dropped.ids


def test_parquet_keeps_images_until_they_are_needed(
    seeing: Path, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "messages": json.dumps(ask(PART, text("q"))),
            "images": [{"bytes": (seeing / name).read_bytes(), "path": None}],
        }
        for name in ("a.png", "b.jpg")
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    chosen = config(seeing, tmp_path / "data.parquet")
    corpus = dataset.prepare(chosen, ALONE, tokenizer)
    assert any("2 images of 4 tokens" in note for note in corpus.notes)
    (picture,) = corpus.train.pictures(1)
    assert picture.content == (seeing / "b.jpg").read_bytes()
    assert picture.where.endswith("data.parquet:row 2")
    ids, _ = corpus.train.sample(1)
    made = tokenizer.vision.inputs(ids, [picture])
    assert tuple(made["pixel_values"].shape) == (1, 3, 28, 28)
    show_sample.main(chosen, 2, out := io.StringIO())
    assert "image 1: 50x20, 4 tokens from token" in out.getvalue()
    assert "<image>x4" in out.getvalue()


def test_an_image_that_changed_after_tokenizing_is_refused(
    seeing: Path, tokenizer: Any, tmp_path: Path
) -> None:
    make_image(tmp_path / "c.png", 30, 30)
    (tmp_path / "data.jsonl").write_bytes(line("q", images=["c.png"]) + b"\n")
    chosen = config(seeing, tmp_path / "data.jsonl")
    (picture,) = dataset.prepare(chosen, ALONE, tokenizer).train.pictures(0)
    make_image(tmp_path / "c.png", 31, 30)
    for again in (
        lambda: dataset.prepare(chosen, ALONE, tokenizer),
        lambda: tokenizer.vision.inputs(np.zeros(1), [picture]),
        lambda: tokenizer.vision.inputs(np.zeros(1), [replace(picture, content="/none")]),
    ):
        with pytest.raises(
            ConfigError, match=r"data.jsonl:1: image .*: expected an image of 30x30"
        ):
            again()
