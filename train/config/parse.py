"""Read a training's file and flags into a Config, with file and line for what is wrong."""

from __future__ import annotations

import argparse
import math
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from train.config import datasets, foreign, toml_file
from train.config.config import Config
from train.config.datasets import expanded
from train.config.foreign import FIELDS, ON, SECTIONS, Given, NoEffect, nearest, takes_structure
from train.errors import ConfigError

Mode = Literal["train", "check", "smoke", "show-sample", "version"]
Pair = tuple[str, Any, str]
"""A key as it was written: its spelling, its raw value, its source."""
OPTIONS = ("config", "set", "check", "smoke", "show-sample", "version", "help")
"""Flags that are no keys."""
START = "python -m train --config FILE; `python -m train.tools.demo_assets demo` makes one to try"
TYPES = typing.get_type_hints(Config)
PATHS = {
    "name_or_path", "dataset_path", "eval_dataset_path", "output_dir", "cache_dir",
    "resume_from_checkpoint", "lora_init_from",
    "upload_to",
}  # fmt: skip
MAPPINGS: Mapping[str, Callable[[Any], Any]] = {
    "columns": datasets.read_columns,
    "roles": datasets.read_roles,
    "chat_template_kwargs": datasets.read_mapping,
    "lora_rank_pattern": datasets.read_mapping,
    "lora_alpha_pattern": datasets.read_mapping,
}
"""Keys whose value is a mapping → what reads it."""
FALSE, NONE = {"false", "no", "off", "0"}, {"null", "none", "~", ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """A command line of `python -m train`, read."""

    mode: Mode
    given: Mapping[str, Given]
    sample: int = 1
    """Which sample to show, counted from 1."""
    notes: tuple[str, ...] = ()
    """Keys that were taken, but change nothing here."""

    def config(self, **replaced: object) -> Config:
        """Return the Config; `replaced` wins over what was given."""
        values = {name: item.value for name, item in self.given.items()} | replaced
        try:
            return Config(**values)
        except ConfigError as error:
            located = tuple(self._located(problem) for problem in error.problems)
            raise ConfigError(
                *located, hint=error.hint or (None if self.given else START)
            ) from None

    def _located(self, problem: str) -> str:
        name = re.split("[: ]", problem, maxsplit=1)[0]
        return f"{self.given[name].source}: {problem}" if name in self.given else problem


def parse(argv: Sequence[str]) -> Arguments:
    """Read a command line: `--config FILE`, `--set key=value`, and every key as a flag.

    The ConfigError lists every problem of the file and the flags.
    """
    try:
        known, rest = _parser().parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error), hint="python -m train --help") from None
    problems: list[str] = []
    notes: list[str] = []
    given = _read_file(Path(known.config), problems, notes) if known.config else {}
    flags = [*_flags(rest, problems), *_sets(known.set, problems)]
    given |= _read_pairs(flags, problems, notes)
    problems += _may_mean_all_weights(given)
    if problems:
        raise ConfigError(*problems, hint="every key is in docs/reference/train-config.md")
    shows = known.show_sample is not None
    return Arguments(
        mode="show-sample" if shows else known.mode,
        given=given,
        sample=known.show_sample if shows else 1,
        notes=tuple(notes),
    )


def _epilog() -> str:
    """Return what `--help` says after the flags: all keys, by section, and the way to begin."""
    sections: dict[str, list[str]] = {}
    for name, item in FIELDS.items():
        sections.setdefault(item.metadata["section"], []).append(name)
    width = max(map(len, sections)) + 4
    keys = [
        textwrap.fill(
            " ".join(names), 80, initial_indent=f"  {section}".ljust(width),
            subsequent_indent=" " * width,
        )
        for section, names in sections.items()
    ]  # fmt: skip
    return "\n".join((
        "keys, in the file or as flags (--learning-rate 1e-4);",
        "name_or_path and dataset_path are required, all others have defaults:",
        *keys,
        "docs/reference/train-config.md explains each; train/config.example.yaml",
        "",
        "to begin:",
        "  python -m train.tools.demo_assets demo      make a small model and data",
        "  python -m train --config demo/config.yaml   train, here and in one process",
        "  clusterctl launch -- -m train --config ...  train on all nodes",
        "  python -m train.tools.plot demo/output      draw losses and speed",
        "  python -m train.tools.generate --help       ask the model, before and after",
    ))  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m train",
        allow_abbrev=False,
        exit_on_error=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Fine-tune a Hugging Face causal language model on as many nodes as there are.",
        epilog=_epilog(),
    )
    parser.add_argument("--config", metavar="FILE", help="the configuration: YAML, JSON or TOML")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="replace one key"
    )
    modes = parser.add_mutually_exclusive_group()
    for mode, about in (
        ("version", "print the versions, and end"),
        ("check", "say what would not work, and end"),
        ("smoke", "train, save, resume and export a toy, in seconds"),
    ):
        modes.add_argument(
            f"--{mode}", action="store_const", dest="mode", const=mode, default="train", help=about
        )
    modes.add_argument(
        "--show-sample", type=int, nargs="?", const=1, metavar="N",
        help="print sample N (from 1) as tokenized, with what is learned, and end",
    )  # fmt: skip
    return parser


def _composed(path: Path) -> yaml.Node | None:
    """Return the nodes of a YAML, JSON or TOML file; None if it is empty."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            return toml_file.compose(text, path)
        return yaml.compose(text, yaml.SafeLoader)
    except OSError as error:
        problem = f"{path}: expected a configuration file, found: {error.strerror}"
    except UnicodeDecodeError as error:
        problem = f"{path}: expected UTF-8 text, found byte {error.object[error.start]:#x}"
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = f"{path}:{line}: expected YAML, found: {error.problem}"
    except (yaml.YAMLError, RecursionError) as error:
        problem = f"{path}: expected YAML, found: {str(error).splitlines()[0]}"
    raise ConfigError(problem)


def _read_file(path: Path, problems: list[str], notes: list[str]) -> dict[str, Given]:
    """Return what a file says; keys may stand under section names or not."""
    try:
        root = _composed(path)
    except ConfigError as error:
        problems += error.problems
        return {}
    if not isinstance(root, yaml.MappingNode):
        found = "an empty file" if root is None else "no mapping"
        problems.append(f"{path}:1: expected `key: value` lines, found {found}")
        return {}
    pairs = _pairs(root, path, None, problems)
    return _read_pairs(pairs, problems, notes)


def _may_mean_all_weights(given: Mapping[str, Given]) -> Iterator[str]:
    """Say if the file is of a program that trains all weights where it speaks of no adapter."""
    base = given.get("name_or_path", Given(name="", value=""))
    speaks = "method" in given or (
        base.spelling != "base_model" and any(key.startswith("lora_") for key in given)
    )
    if base.spelling in foreign.TRAINS_ALL and not speaks:
        yield (
            f"{base.source}: {base.spelling}: expected method: lora or full with it, since "
            f"{foreign.TRAINS_ALL[base.spelling]} then train all weights, found neither"
        )


def _pairs(
    node: yaml.MappingNode, path: Path, section: str | None, problems: list[str]
) -> list[Pair]:
    """Return the keys of a mapping and of the sections in it."""
    found: list[Pair] = []
    for key, value in node.value:
        source = f"{path}:{key.start_mark.line + 1}"
        name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
        if section is None and isinstance(value, yaml.MappingNode) and name in SECTIONS:
            found += _pairs(value, path, name, problems)
            continue
        try:
            found.append((*_value_of(name, value, section), source))
        except yaml.MarkedYAMLError as error:
            problems.append(f"{source}: {name}: expected plain values, found: {error.problem}")
        except ValueError as error:
            problems.append(f"{source}: {name}: expected {error}")
    return found


def _value_of(name: str, node: yaml.Node, section: str | None) -> tuple[str, Any]:
    """Return a key's spelling and its raw value: texts, for the key's own type to read.

    Raises:
        MarkedYAMLError: the value is of a type that plain YAML has not.
        ValueError: the key takes no such structure.
    """
    full = _full(name, section)
    own = foreign.own_name(full)
    if isinstance(node, yaml.ScalarNode):
        return full, None if node.tag == "tag:yaml.org,2002:null" else node.value
    is_mapping = isinstance(node, yaml.MappingNode)
    if takes_structure(name) and not (is_mapping and name in SECTIONS):
        return name, _plain(node)
    if is_mapping and own not in MAPPINGS:
        close = nearest(name, SECTIONS) if section is None else ""
        where = f"; nearest: {close}" if close else ""
        raise ValueError(f"a value or a section, found a mapping{where}")
    items = [item.value for item in node.value if isinstance(item, yaml.ScalarNode)]
    if is_mapping or (len(items) < len(node.value) and own == "dataset_path"):
        return full, _plain(node)
    if len(items) < len(node.value):
        raise ValueError("a plain list, found one with more in it")
    return full, items


def _plain(node: yaml.Node) -> Any:
    """Return a node's value as Python has it."""
    return yaml.safe_load(yaml.serialize(node))


def _full(name: str, section: str | None) -> str:
    """Return `lora_r` for `r` in the section lora: the short names of that section."""
    return f"lora_{name}" if section == "lora" and f"lora_{name}" in FIELDS else name


def _flags(rest: list[str], problems: list[str]) -> list[Pair]:
    """Return the flags that argparse left: `--key value`, `--key=value`, or a bare switch."""
    found: list[Pair] = []
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            is_file = word.endswith((".yaml", ".yml", ".toml"))
            meant = f"; a file is given as --config {word}" if is_file else ""
            problems.append(f"{word}: expected a flag (--key value), found a word alone{meant}")
            continue
        flag, equals, value = word.partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        found.append((flag[2:].replace("-", "_"), value, flag))
    return found


def _sets(sets: list[str], problems: list[str]) -> list[Pair]:
    """Return the `--set`s; the key may be written `section.key`."""
    found: list[Pair] = []
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            problems.append(f"--set {text}: expected KEY=VALUE, found no =")
            continue
        section, _, name = key.strip().replace("-", "_").rpartition(".")
        found.append((_full(name, section), value, f"--set {key}"))
    return found


def _read_pairs(pairs: list[Pair], problems: list[str], notes: list[str]) -> dict[str, Given]:
    """Settle spellings, convert values, and refuse a key that is there twice."""
    given: dict[str, Given] = {}
    several = ((*pair, at) for name, raw, at in pairs for pair in foreign.expand(name, raw))
    for spelling, raw, source in several:
        is_flag = source.startswith("--")
        where = source if is_flag else f"{source}: {spelling}"
        answer = foreign.resolve(spelling, raw)
        if isinstance(answer, NoEffect):
            notes += [f"{where}: has no effect: {answer.note}"] if answer.note else []
            continue
        if isinstance(answer, str):
            meant = nearest(spelling, OPTIONS) if source == f"--{spelling}" else ""
            problems.append(f"{where}: {f'unknown flag; nearest: --{meant}' if meant else answer}")
            continue
        try:
            new = replace(
                answer, value=convert(answer.name, answer.value), source=source, spelling=spelling
            )
            before = None if is_flag else given.get(new.name)  # of two flags the last one holds
            given[new.name] = new if before is None else _one_of(before, new)
        except ValueError as error:
            problems.append(f"{where}: expected {error}, found {answer.value!r}")
        except ConfigError as error:
            problems += [f"{where}: {problem}" for problem in error.problems]
        else:
            notes += [f"{where}: {answer.note}"] if answer.note else []
    return given


def _one_of(before: Given, new: Given) -> Given:
    """Return what counts of two spellings of one key in a file; refuse a contradiction."""
    if new.name == "report_to":
        return replace(new, value=tuple(dict.fromkeys((*before.value, *new.value))))
    if new.weight == before.weight and new.value != before.value:
        raise ConfigError(f"expected once, found again (first: {before.source})")
    return max(before, new, key=lambda given: given.weight)


def convert(name: str, raw: str | list[str] | Mapping[str, Any] | None) -> Any:
    """Return the text as the key's type.

    A ValueError says what was wanted; a ConfigError what is wrong with data sets or a path.
    """
    if name == "dataset_path":
        return datasets.read(raw)
    if name in MAPPINGS:
        return MAPPINGS[name](raw)
    kind = TYPES[name]
    if isinstance(kind, types.UnionType):
        if raw is None or (isinstance(raw, str) and raw.lower() in NONE):
            return None
        kind = next(part for part in typing.get_args(kind) if part is not types.NoneType)
    if typing.get_origin(kind) is tuple:
        return tuple(raw) if isinstance(raw, list) else _words(str(raw or ""))
    if name == "eval_dataset_path" and isinstance(raw, list):
        raw = ",".join(raw)
    value = _scalar(kind, raw.strip()) if isinstance(raw, str) else None
    if value is None:
        raise ValueError(describe(kind))
    return expanded(value) if name in PATHS else value


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip(" '\"") for part in text.strip("[] ").split(",") if part.strip())


def _scalar(kind: Any, text: str) -> Any:
    """Return a text as its type; None if it is not of that type."""
    if typing.get_origin(kind) is Literal:
        return text if text in typing.get_args(kind) else None
    if kind is bool:
        return text.lower() in ON if text.lower() in ON | FALSE else None
    if kind is str:
        return text
    try:
        number = float(text)
    except ValueError:
        return None
    fits = math.isfinite(number) and (kind is float or number == int(number))
    return kind(number) if fits else None


def describe(kind: Any) -> str:
    """Return a type in words."""
    inner = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return ", or ".join("null" if part is types.NoneType else describe(part) for part in inner)
    if typing.get_origin(kind) is Literal:
        return " | ".join(inner)
    if typing.get_origin(kind) is tuple:
        return "a list of names" if inner[0] is str else "a list of paths with weights"
    if typing.get_origin(kind) is Mapping:
        return "a mapping"
    return {bool: "true | false", int: "a whole number", float: "a number", str: "text"}[kind]
