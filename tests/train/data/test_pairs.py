"""A pair is two texts of one line, in every form that other programs write."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.lazy_torch import torch  # noqa: F401  (transformers' tokenizers import it)
from tests.train import preference_loop as loop
from tests.train.independent_loop import BEGIN, END, make_tokenizer
from train.config.config import Config
from train.data import dataset, show_sample
from train.data.collate import collate
from train.data.encoding import Sample
from train.data.files.bad_line import BadLine
from train.data.formats import Reader, Rules
from train.distributed.env import RankEnv
from train.errors import ConfigError

pytestmark = pytest.mark.torch

USER = {"role": "user", "content": "red?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("round", "square"))
ASKED = {"from": "human", "value": "red?"}
SHARED = {"from": "gpt", "value": "round"}
RULES = Rules(pairs=True)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(loop.WORDS, 300)


def texts(tokenizer: Any, record: dict[str, Any], rules: Rules = RULES) -> list[tuple[str, str]]:
    """Return of both texts what is not learned, and what is."""
    documents = Reader(tokenizer, None, rules).read_all(json.dumps(record).encode())
    found = []
    for document in documents:
        text = "".join(piece.text for piece in document.pieces)
        if document.chat:
            ((begin, end),) = document.chat.spans
            found.append((text[:begin], text[begin:end]))
        else:
            found.append((document.pieces[0].text, document.pieces[1].text))
    return found


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": "red?", "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": [USER], "chosen": "round", "rejected": "square"},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "red?", "chosen": [USER, GOOD], "rejected": [USER, BAD], "score_chosen": 9},
        {"messages": [USER], "chosen": GOOD, "rejected": BAD},
        {"conversations": [ASKED], "chosen": SHARED, "rejected": dict(SHARED, value="square")},
        {"instruction": "red?", "input": "", "chosen": "round", "rejected": "square"},
        {"question": "red?", "chosen": "round", "rejected": "square"},
        {"instruction": "red?", "chosen": SHARED, "rejected": BAD},
    ],
)
def test_every_form_of_a_chat(tokenizer: Any, record: dict[str, Any]) -> None:
    prompt = f"{BEGIN}user\nred?{END}\n{BEGIN}assistant\n"
    wanted = [(prompt, f"{answer}{END}") for answer in ("round", "square")]
    assert texts(tokenizer, record) == wanted


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "Human: red?", "chosen": " round", "rejected": " square"},
        {"chosen": "Human: red? round", "rejected": "Human: red? square"},
    ],
)
def test_plain_texts(tokenizer: Any, record: dict[str, Any]) -> None:
    assert texts(tokenizer, record) == [("Human: red?", " round"), ("Human: red?", " square")]


def test_columns_may_have_other_names(tokenizer: Any) -> None:
    rules = replace(RULES, columns={"chosen": "win", "rejected": "lose"})
    record = {"prompt": "a ", "win": "b", "lose": "c"}
    assert texts(tokenizer, record, rules) == [("a ", "b"), ("a ", "c")]


@pytest.mark.parametrize(
    ("record", "rules", "said"),
    [
        ({"prompt": "a", "chosen": "b"}, RULES, "expected chosen and rejected"),
        ({"prompt": "a", "chosen": "b", "rejected": ""}, RULES, "rejected: completion: expected"),
        ({"prompt": "a", "chosen": "b", "rejected": [BAD]}, RULES, "one of each"),
        ({"chosen": 1, "rejected": 2}, RULES, "found neither"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, Rules(), "objective: dpo or orpo"),
    ],
)
def test_no_pair(tokenizer: Any, record: dict[str, Any], rules: Rules, said: str) -> None:
    with pytest.raises(BadLine, match=said):
        texts(tokenizer, record, rules)


def test_a_pair_of_which_one_text_has_nothing_to_learn_has_none() -> None:
    whole = Sample(ids=[1, 2], loss_mask=[False, True])
    dropped = Sample(ids=[], loss_mask=[], whole=9)
    assert Sample.pair([whole], []) == []
    assert Sample.pair([whole], [dropped]) == [dropped]
    (both,) = Sample.pair([whole], [Sample(ids=[3, 4], loss_mask=[True, True], whole=5)])
    assert (both.ids, both.loss_mask) == ([1, 2, 3, 4], [False, True, False, True])
    assert (both.second, both.whole) == (2, 5)


def test_a_pair_is_two_rows_of_a_batch(tmp_path: Path) -> None:
    tokenizer = loop.make_model(tmp_path / "base")
    rows = loop.write_pairs(tmp_path / "pairs.jsonl", 5, 1)
    config = Config(
        name_or_path=str(tmp_path / "base"),
        dataset_path=str(tmp_path / "pairs.jsonl"),
        output_dir=str(tmp_path / "output"),
        eval_split=2,
        objective="dpo",
    )
    corpus = dataset.prepare(config, RankEnv.from_environment({}), tokenizer)
    assert corpus.eval
    assert (len(corpus.train), len(corpus.eval)) == (3, 2)
    batch = collate(corpus.train, [np.asarray([n]) for n in range(3)], packed=False, pairs=True)
    empty = collate(corpus.train, [], packed=False, pairs=True)
    assert (batch.pairs, empty.pairs, len(empty.labels)) == (3, 0, 2)
    numbers = corpus.train.sets[0].column("line")
    wanted = [text for number in numbers for text in loop.texts(rows[number], tokenizer)]
    assert batch.valid == sum(len(ids) - begin for ids, begin in wanted)
    for line, labels, (ids, begin) in zip(batch.input_ids, batch.labels, wanted, strict=True):
        assert line[: len(ids)].tolist() == ids
        assert labels[begin : len(ids)].tolist() == ids[begin:]
        assert {*labels[:begin], *labels[len(ids) :]} == {-100}

    out = StringIO()
    show_sample.main(config, 2, out)
    shown = out.getvalue()
    assert shown.index("chosen:") < shown.index(rows[1]["chosen"]) < shown.index("rejected:")
    assert shown.index("rejected:") < shown.index(rows[1]["rejected"])


def test_what_pairs_exclude() -> None:
    some: dict[str, Any] = {"name_or_path": "m", "dataset_path": "d", "objective": "dpo"}
    with pytest.raises(ConfigError, match="batching: expected balanced or plain for pairs"):
        Config(**some, batching="packed")
    with pytest.raises(ConfigError, match="expected lora with objective: dpo, found full"):
        Config(**some, method="full")
    with pytest.raises(ConfigError, match="label_smoothing: expected objective: dpo"):
        Config(**some | {"objective": "orpo"}, label_smoothing=0.1)
