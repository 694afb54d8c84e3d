"""The token cache: made once, by one node or many, never stale, and refused when damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train.world import context
from train.config.config import Config
from train.config.datasets import Dataset
from train.data import dataset, encoding, token_cache
from train.data.files import lines
from train.data.files.lines import Line
from train.distributed.env import RankEnv
from train.errors import AnotherRankFailed, ConfigError

pytestmark = pytest.mark.torch


@pytest.fixture
def config(tiny: Path, tmp_path: Path) -> Config:
    data = tmp_path / "data.jsonl"
    jsonl = [json.dumps({"text": f"line {number} " * (number % 7 + 1)}) for number in range(200)]
    data.write_text("\n".join(jsonl) + "\n")
    return Config(
        name_or_path=str(tiny / "model"),
        dataset_path=str(data),
        output_dir=str(tmp_path / "output"),
        seq_len=48,
    )


@pytest.fixture
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_cache, "SHARD_BYTES", 1000)


def contents(corpus: dataset.Corpus) -> list[list[int]]:
    return [corpus.train.sample(number)[0].tolist() for number in range(len(corpus.train))]


def caches(config: Config) -> list[Path]:
    return sorted(path for path in (Path(config.output_dir) / "tokens").iterdir() if path.is_dir())


def cache_of(config: Config) -> Path:
    (cache,) = caches(config)
    return cache


def test_tokens_are_those_of_the_tokenizer_in_the_order_of_the_lines(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = dataset.prepare(replace(config, cache_dir=config.output_dir + "/one"), RankEnv())
    monkeypatch.setattr(token_cache, "SHARD_BYTES", 1000)
    many = dataset.prepare(config, RankEnv())
    assert len(list(caches(config)[0].glob("shard-*"))) > 5
    assert contents(one) == contents(many)
    assert one.key == many.key
    tokenizer = dataset.load_tokenizer(Path(config.name_or_path), config)
    assert tokenizer.decode(contents(one)[3]) == "line 3 " * 4 + "<eos>"
    ids, labels = one.train.sample(3)
    assert (ids == labels).all()
    assert one.train.targets[3] == len(ids) - 1


def test_all_is_told_of_a_tokenizer_that_cannot_be_loaded(config: Config, tmp_path: Path) -> None:
    about = (Path(config.name_or_path) / "config.json").read_text()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text(about)
    with pytest.raises(ConfigError, match=r"expected a tokenizer in .*sentencepiece or tiktoken"):
        dataset.load_tokenizer(tmp_path / "bare", config)


def test_a_second_run_takes_what_is_there(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    first = dataset.prepare(config, RankEnv())

    def never(*_: object) -> None:
        raise AssertionError("tokenized again")

    monkeypatch.setattr(dataset, "load_tokenizer", never)
    assert contents(dataset.prepare(config, RankEnv(local_rank=1))) == contents(first)


def test_other_data_another_length_or_tokenizer_is_another_cache(
    config: Config, tiny: Path
) -> None:
    keys = {dataset.prepare(config, RankEnv()).key}
    keys.add(dataset.prepare(replace(config, seq_len=32), RankEnv()).key)
    path = Path(config.datasets[0].path)
    path.write_text(path.read_text().replace("line 7 ", "line 8 "))
    keys.add(dataset.prepare(config, RankEnv()).key)
    assert len(keys) == len(caches(config)) == 3


def test_nodes_that_share_the_folder_share_the_work(config: Config) -> None:
    padded_tokens = [
        RankEnv(local_rank=local, node_rank=node, nodes=3) for node in range(3) for local in (0, 1)
    ]
    with context().Pool(len(padded_tokens)) as pool:
        keys = pool.starmap(key_of, [(config, env) for env in padded_tokens])
    assert len(set(keys)) == 1
    (cache,) = caches(config)
    assert len(list(cache.glob("shard-*"))) > 5
    left = [path.name for path in cache.iterdir() if "tmp" in path.name or "claim" in path.name]
    assert left == []


def test_what_another_node_writes_aside_may_vanish_at_any_moment(config: Config) -> None:
    dataset.prepare(config, RankEnv())
    (cache,) = caches(config)
    (cache / "MANIFEST.json.tmp-1234").symlink_to("renamed")  # listed, but no longer there
    dataset.prepare(config, RankEnv())


def key_of(config: Config, env: RankEnv) -> str:
    """Be a process of a node."""
    token_cache.SHARD_BYTES = 1000
    corpus = dataset.prepare(config, env)
    return corpus.key + str(len(corpus.train))


def test_nodes_with_samples_of_their_own_have_each_line_once(config: Config) -> None:
    strided = replace(config, node_data="strided")
    parts = [dataset.prepare(strided, RankEnv(node_rank=node, nodes=3)) for node in range(3)]
    jsonl = [set(part.train.sets[0].column("line").tolist()) for part in parts]
    assert [min(found) for found in jsonl] == [0, 1, 2]
    assert all(number % 3 == node for node, found in enumerate(jsonl) for number in found)
    assert set.union(*jsonl) == set(range(200))
    assert len({part.key for part in parts}) == 1


def test_no_line_is_on_both_sides_of_a_held_out_share(config: Config) -> None:
    corpus = dataset.prepare(replace(config, eval_split=0.1, seq_len=8), RankEnv())
    assert corpus.eval is not None
    assert not set(corpus.eval.sets[0].column("line").tolist()) & set(
        corpus.train.sets[0].column("line").tolist()
    )
    assert len(np.unique(corpus.eval.sets[0].column("line"))) == 20


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_number_of_samples_is_held_out_of_all_nodes_together(config: Config, nodes: int) -> None:
    config = replace(config, eval_split=30.0, seq_len=8, node_data="strided")
    held_out = []
    for node in range(nodes):
        corpus = dataset.prepare(config, RankEnv(node_rank=node, nodes=nodes))
        assert corpus.eval is not None
        held_out.append(len(np.unique(corpus.eval.sets[0].column("line"))))
    assert held_out == [30 // nodes] * nodes
    with pytest.raises(ConfigError, match="less than the 200 samples that there are, found 500"):
        dataset.prepare(replace(config, eval_split=500.0, node_data="whole"), RankEnv())


def test_the_files_of_a_folder_are_named(config: Config, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("train-0", "train-1", "test"):
        (folder / f"{name}.jsonl").write_text(json.dumps({"text": f"some words {name}"}) + "\n")
    both = replace(config, dataset_path=str(folder), eval_dataset_path=str(folder))
    corpus = dataset.prepare(both, RankEnv())
    assert corpus.notes == (
        f"dataset_path: train-0.jsonl, train-1.jsonl of {folder}",
        f"eval_dataset_path: test.jsonl of {folder}",
    )
    same = str(folder / "test.jsonl")
    corpus = dataset.prepare(replace(config, dataset_path=same, eval_dataset_path=same), RankEnv())
    assert corpus.notes == (
        "eval_dataset_path: test.jsonl is trained on as well",
        "1 of 1 evaluation samples are also trained on",
    )


def test_bad_lines_are_named_and_counted(config: Config) -> None:
    path = Path(config.datasets[0].path)
    jsonl = path.read_text().splitlines()
    jsonl[3], jsonl[9] = "{", '{"txt": "a"}'
    path.write_text("\n".join([*jsonl, "", ""]))
    with pytest.raises(ConfigError) as caught:
        dataset.prepare(replace(config, max_bad_lines=1), RankEnv())
    said = str(caught.value)
    assert f"{path}:4: expected a JSON object" in said
    assert f"{path}:10: expected text" in said
    assert "expected at most 1 unusable lines (max_bad_lines), found 2" in said
    corpus = dataset.prepare(replace(config, max_bad_lines=2), RankEnv())
    assert 3 not in corpus.train.sets[0].column("line")
    assert len(corpus.notes) == 2


def test_a_prompt_without_room_for_its_answer_is_told_what_it_needs(config: Config) -> None:
    with Path(config.datasets[0].path).open("a") as file:
        file.write(json.dumps({"prompt": "why " * 100, "completion": "so"}) + "\n")
    with pytest.raises(ConfigError) as caught:
        dataset.prepare(config, RankEnv())
    assert ":201: nothing to learn within seq_len 48: a long prompt needs a" in str(caught.value)


def test_a_file_that_is_something_else_is_told_at_once(config: Config) -> None:
    Path(config.datasets[0].path).write_text('{"txt": "words"}\n' * 5000)
    with pytest.raises(ConfigError, match=r"and so are the \d+ lines after it"):
        dataset.prepare(replace(config, max_bad_lines=10**6), RankEnv())


@pytest.mark.usefixtures("_small_shards")
def test_the_index_of_all_shards_is_mapped_and_not_held(config: Config) -> None:
    config = replace(config, seq_len=200)  # a sample a line
    whole = dataset.prepare(config, RankEnv())
    for column in (whole.train.lengths, whole.train.targets, whole.train.sets[0].column("line")):
        held: Any = column
        while isinstance(held, np.ndarray) and not isinstance(held, np.memmap):
            held = held.base
        assert isinstance(held, np.memmap)
    parts = dataset.prepare(replace(config, eval_split=0.2), RankEnv())
    assert parts.eval is not None
    found = {
        int(line): samples.sample(number)[0].tolist()
        for samples in (parts.train, parts.eval)
        for number, line in enumerate(samples.sets[0].column("line"))
    }
    assert [found[line] for line in range(200)] == contents(whole)
    assert len(parts.train) + len(parts.eval) == 200
    assert parts.eval.lengths.tolist() == [
        len(found[int(line)]) for line in parts.eval.sets[0].column("line")
    ]


@pytest.mark.parametrize("name", ["shard-001-*/tokens.bin", "index.npy"])
@pytest.mark.usefixtures("_small_shards")
def test_a_flipped_bit_is_refused_with_the_way_out(config: Config, name: str) -> None:
    dataset.prepare(config, RankEnv())
    (path,) = cache_of(config).glob(name)
    damaged = bytearray(path.read_bytes())
    damaged[7] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(ConfigError) as caught:
        dataset.prepare(config, RankEnv())
    assert f"{path}: the token cache is damaged" in str(caught.value)
    assert "rm -r" in str(caught.value)


@pytest.mark.parametrize("name", ["MANIFEST.json", "index.npy", "shard-*/loss_mask.bin"])
def test_a_lost_file_of_the_cache_is_refused_with_the_way_out(config: Config, name: str) -> None:
    dataset.prepare(config, RankEnv())
    (path,) = cache_of(config).glob(name)
    path.unlink()
    with pytest.raises(ConfigError, match=f"{path}: the token cache is damaged"):
        dataset.prepare(config, RankEnv())


def test_what_a_killed_node_left_half_done_is_done_again(config: Config) -> None:
    source = token_cache.source(
        config, RankEnv(), Path(config.name_or_path), (Path(config.datasets[0].path),)
    )
    half = source.folder / "shard-000-of-001.tmp-1234"
    half.mkdir(parents=True)
    (half / "tokens.bin").write_bytes(b"\0")
    assert set(dataset.prepare(config, RankEnv()).train.sets[0].column("line").tolist()) == set(
        range(200)
    )
    assert not half.exists()


@pytest.mark.usefixtures("_small_shards")
def test_the_largest_token_is_known_without_a_look_at_the_tokens(config: Config) -> None:
    corpus = dataset.prepare(config, RankEnv())
    largest = max(map(max, contents(corpus)))
    for path in cache_of(config).glob("shard-*/tokens.bin"):
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
    assert not any(map(any, contents(corpus)))
    assert corpus.largest_token == largest > 0


@pytest.mark.usefixtures("_small_shards")
def test_every_line_is_read_once_for_all_shards(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    plainly = lines.read

    def counted(*words: Any, **how: Any) -> Iterator[Line]:
        for line in plainly(*words, **how):
            read.append(line.number)
            yield line

    monkeypatch.setattr(lines, "read", counted)
    dataset.prepare(config, RankEnv())
    assert sorted(read) == list(range(200))
    assert len(list(cache_of(config).glob("shard-*"))) > 5


@pytest.mark.usefixtures("_small_shards")
def test_data_that_changes_under_the_tokenizer_is_refused(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    plainly = encoding.encode

    def meanwhile(*words: Any) -> Any:
        with Path(config.datasets[0].path).open("a") as file:
            file.write('{"text": "more"}\n')
        return plainly(*words)

    monkeypatch.setattr(encoding, "encode", meanwhile)
    with pytest.raises(ConfigError, match="expected data that stays as it is"):
        dataset.prepare(config, RankEnv())
    assert not [path for path in cache_of(config).iterdir() if _is_made(path)]


def _is_made(path: Path) -> bool:
    return (path / "shard.json").exists() and ".tmp-" not in path.name


def test_a_bad_stretch_is_no_other_format(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_cache, "SHARD_BYTES", 1000)
    with Path(config.datasets[0].path).open("a") as file:
        file.write("some words\n" * 500)
    corpus = dataset.prepare(replace(config, max_bad_lines=500), RankEnv())
    assert set(corpus.train.sets[0].column("line").tolist()) == set(range(200))


def test_waiting_ends_when_nobody_makes_the_tokens(config: Config) -> None:
    checks = iter(range(3))

    def failed_later() -> None:
        if next(checks) == 2:
            raise AnotherRankFailed("rank 0")

    with pytest.raises(AnotherRankFailed, match="rank 0"):
        dataset.prepare(config, RankEnv(local_rank=1), check=failed_later)


def several(config: Config, *weights: float) -> Config:
    """Return a training on further files, each with some lines of its own."""
    folder = Path(config.datasets[0].path).parent
    found = []
    for number, weight in enumerate(weights):
        path = folder / f"set-{number}.jsonl"
        texts = (f"set {number} line {line}" for line in range(10 * number + 10))
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        found.append(Dataset(path=str(path), weight=weight))
    return replace(config, dataset_path=tuple(found))


def test_each_data_set_has_a_cache_of_its_own_and_weights_change_the_key_alone(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = several(config, 1.0, 2.0)
    corpus = dataset.prepare(config, RankEnv())
    assert len(caches(config)) == 2
    assert [len(samples) for samples in corpus.train.sets] == [10, 20]
    assert [share.weight for share in corpus.train.shares] == [1.0, 2.0]
    alone = [
        dataset.prepare(replace(config, dataset_path=each.path), RankEnv())
        for each in config.datasets
    ]
    assert len(caches(config)) == 2
    assert contents(corpus) == contents(alone[0]) + contents(alone[1])
    assert corpus.train.lengths.tolist() == [len(ids) for ids in contents(corpus)]

    def never(*_: object) -> None:
        raise AssertionError("tokenized again")

    monkeypatch.setattr(dataset, "load_tokenizer", never)
    other = dataset.prepare(several(config, 1.0, 0.5), RankEnv())
    assert contents(other) == contents(corpus)
    order = replace(config, dataset_path=config.datasets[::-1])
    once = replace(config, dataset_path=(config.datasets[0],))
    keys = [dataset.prepare(each, RankEnv()).key for each in (config, order, once)]
    assert len({*keys, other.key}) == 4
    assert keys[2] == alone[0].key, "a list of one is that one"


def test_lines_of_each_data_set_are_held_out(config: Config) -> None:
    config = replace(several(config, 0.5, 3.0), eval_split=0.1)
    corpus = dataset.prepare(config, RankEnv())
    assert corpus.eval is not None
    assert [len(samples) for samples in corpus.eval.sets] == [1, 2]
    assert [share.weight for share in corpus.eval.shares] == [1.0, 1.0]
    for ours, theirs in zip(corpus.train.sets, corpus.eval.sets, strict=True):
        assert not set(ours.column("line").tolist()) & set(theirs.column("line").tolist())
    held_out = [corpus.eval.sample(number)[0].tolist() for number in range(3)]
    assert not any(ids in contents(corpus) for ids in held_out)


def test_a_data_set_that_cannot_be_used_is_named(config: Config, tmp_path: Path) -> None:
    config = several(config, 1.0, 1.0)
    missing = Dataset(path=str(tmp_path / "missing.jsonl"))
    with pytest.raises(ConfigError, match=rf"expected a file or folder at {missing.path}"):
        dataset.prepare(replace(config, dataset_path=(*config.datasets, missing)), RankEnv())
    assert not (Path(config.output_dir) / "tokens").exists(), "before anything is tokenized"
    Path(config.datasets[1].path).write_text('{"text": "some words"}\nwords\n')
    named = rf"dataset_path {config.datasets[1].path}: expected at most 0 unusable lines"
    with pytest.raises(ConfigError, match=named):
        dataset.prepare(config, RankEnv())


@pytest.mark.parametrize("name", ["missing.jsonl", "empty"])
def test_missing_data_is_told(config: Config, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="dataset_path: expected"):
        dataset.prepare(replace(config, dataset_path=str(tmp_path / name)), RankEnv())


@pytest.mark.parametrize(("overlong", "fate"), [("cut", "were cut"), ("drop", "were dropped")])
def test_samples_that_are_too_long_are_cut_or_dropped_and_counted(
    config: Config, overlong: Any, fate: str
) -> None:
    pairs = [{"prompt": "why?", "completion": "so " * count} for count in (1, 30, 40, 300)]
    prompt = {"prompt": "why " * 300, "completion": "so"}  # not even its answer would be there
    path = Path(config.datasets[0].path)
    path.write_text("\n".join(map(json.dumps, pairs)))
    config = replace(config, overlong=overlong)
    corpus = dataset.prepare(config, RankEnv())
    tokenizer = dataset.load_tokenizer(Path(config.name_or_path), config)
    whole = [len(tokenizer(pair["prompt"] + pair["completion"])["input_ids"]) for pair in pairs]
    assert whole[0] < config.seq_len < whole[1] < whole[2] < 128 < whole[3]
    longest = -(-whole[3] // 64) * 64
    (note,) = corpus.notes
    assert note == (
        f"dataset_path: 3 samples are longer than seq_len 48 and {fate}; seq_len 96 holds 2 of "
        f"them, seq_len {longest} holds all"
    )
    assert corpus.train.lengths.tolist() == ([8, 48, 48, 48] if overlong == "cut" else [8])
    (note,) = dataset.prepare(replace(config, seq_len=128), RankEnv()).notes
    assert note.startswith("dataset_path: 1 sample is longer than seq_len 128 and was ")
    path.write_text("\n".join(map(json.dumps, [*pairs[:1], prompt])))
    if overlong == "cut":
        with pytest.raises(ConfigError, match="nothing to learn within seq_len 48"):
            dataset.prepare(config, RankEnv())
    else:
        assert len(dataset.prepare(config, RankEnv()).train) == 1
        path.write_text(json.dumps(prompt))
        with pytest.raises(ConfigError, match="1 sample is longer than seq_len 48 and was dropped"):
            dataset.prepare(config, RankEnv())


def test_text_is_neither_cut_nor_dropped(config: Config) -> None:
    whole = dataset.prepare(replace(config, seq_len=16), RankEnv())
    kept = dataset.prepare(replace(config, seq_len=16, overlong="drop"), RankEnv())
    assert contents(whole) == contents(kept)
    assert kept.notes == ()


def test_of_several_too_long_samples_it_is_told_what_twice_the_length_holds(config: Config) -> None:
    lengths = (75, 100, 450)
    pairs = [{"prompt": "why?", "completion": "so " * count} for count in lengths]
    Path(config.datasets[0].path).write_text("\n".join(map(json.dumps, pairs)))
    (note,) = dataset.prepare(replace(config, seq_len=128), RankEnv()).notes
    assert "; seq_len 256 holds 2 of them, seq_len 960 holds all" in note


def test_the_length_that_holds_all_is_near_the_longest(config: Config) -> None:
    pairs = [{"prompt": "why?", "completion": "so " * count} for count in (5, 14)]
    Path(config.datasets[0].path).write_text("\n".join(map(json.dumps, pairs)))
    longest = max(dataset.prepare(replace(config, seq_len=512), RankEnv()).train.lengths)
    (note,) = dataset.prepare(replace(config, seq_len=12), RankEnv()).notes
    found = re.search(r"seq_len (\d+) holds all", note)
    assert found
    assert longest <= int(found[1]) < longest + 8


def test_the_key_of_what_is_trained_on_does_not_depend_on_the_evaluation_set(
    config: Config, tmp_path: Path
) -> None:
    held_out = tmp_path / "eval.jsonl"
    config = replace(config, eval_dataset_path=str(held_out))
    made = []
    for text in ("some words", "other words"):
        held_out.write_text(json.dumps({"text": text}))
        made.append(dataset.prepare(config, RankEnv()))
    assert made[0].train_key == made[1].train_key
    assert made[0].key != made[1].key


def test_each_data_set_may_have_columns_and_roles_of_its_own(
    config: Config, tmp_path: Path
) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text('{"body": "words", "text": "title"}\n')
    second.write_text('{"body": "more", "text": "all"}\n')
    listed = (Dataset(path=str(first), columns={"text": "body"}), Dataset(path=str(second)))
    tokenizer = dataset.load_tokenizer(Path(config.name_or_path), config)

    def read(config: Config) -> list[str]:
        return [tokenizer.decode(ids) for ids in contents(dataset.prepare(config, RankEnv()))]

    config = replace(config, dataset_path=listed)
    assert read(config) == ["words<eos>", "all<eos>"]
    assert read(replace(config, columns={"text": "text"})) == ["words<eos>", "all<eos>"]
    config = replace(config, columns={"text": "body"})
    assert read(config) == ["words<eos>", "more<eos>"]
    assert read(replace(config, dataset_path=listed[1:])) == ["more<eos>"]
    split = replace(config, eval_dataset_path=str(second), dataset_path=listed[:1])
    held_out = dataset.prepare(split, RankEnv()).eval
    assert held_out
    assert tokenizer.decode(held_out.sample(0)[0]) == "more<eos>"


@pytest.mark.parametrize(
    "key",
    [
        {"columns": {"text": "text"}},
        {"roles": {"visitor": "user"}},
        {"learn": "last"},
        {"overlong": "drop"},
    ],
    ids=lambda key: next(iter(key)),
)
def test_a_key_that_changes_tokens_is_another_cache(config: Config, key: dict[str, Any]) -> None:
    before = dataset.prepare(config, RankEnv()).key
    assert dataset.prepare(replace(config, **key), RankEnv()).key != before
    assert len(caches(config)) == 2
