"""Read a training's file and flags into a Config, with file and line for what is wrong."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import textwrap
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import yaml

from train.config import columns, datasets, toml_file
from train.config.aliases import NoEffect, expand, nearest, own_name, section_names, settle
from train.config.config import Config
from train.config.environment import expanded
from train.config.foreign import takes_structure
from train.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Mode = Literal["train", "check", "smoke", "show-sample", "version"]
OPTIONS = ("config", "set", "check", "smoke", "show-sample", "version", "help")
"""Flags that are no keys."""
START = "python -m train --config FILE; `python -m train.tools.demo_assets demo` makes one to try"
FIELDS = {item.name: item for item in dataclasses.fields(Config)}
TYPES = typing.get_type_hints(Config)
PATHS = {
    "name_or_path", "dataset_path", "eval_dataset_path", "output_dir", "cache_dir",
    "resume_from_checkpoint",
}  # fmt: skip
READERS: Mapping[str, Callable[[Any], Any]] = {
    "dataset_path": datasets.read,
    "columns": columns.read_columns,
    "roles": columns.read_roles,
}
"""Keys whose value has a form of its own → what reads it."""
TRUE, FALSE, NONE = (
    {"true", "yes", "on", "1"},
    {"false", "no", "off", "0"},
    {"null", "none", "~", ""},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One key as somebody wrote it."""

    name: str
    """The key's own name, whatever the spelling was."""
    value: Any
    source: str
    """`config.yaml:12` or the flag."""
    weight: int = 2
    """Of two spellings of one key in a file the higher one counts."""


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
        """Return the Config; `replaced` wins over what was given.

        Raises:
            ConfigError: the values exclude each other, or a required one is missing.
        """
        values = {name: item.value for name, item in self.given.items()} | replaced
        try:
            return Config(**values)
        except ConfigError as error:
            located = tuple(self._located(problem) for problem in error.problems)
            raise ConfigError(located, hint=error.hint or (None if self.given else START)) from None

    def _located(self, problem: str) -> str:
        name = re.split("[: ]", problem, maxsplit=1)[0]
        return f"{self.given[name].source}: {problem}" if name in self.given else problem


def parse(argv: Sequence[str]) -> Arguments:
    """Read a command line: `--config FILE`, `--set key=value`, and every key as a flag.

    Raises:
        ConfigError: a file or a flag is not as it must be; every problem is listed.
    """
    known, rest = _parser().parse_known_args(list(argv))
    problems: list[str] = []
    notes: list[str] = []
    given: dict[str, Given] = {}
    if known.config:
        given |= _read_file(Path(known.config), problems, notes)
    flags = [*_flags(rest, problems), *_sets(known.set, problems)]
    given |= _read_pairs(flags, problems, notes)
    if problems:
        raise ConfigError(tuple(problems), hint="every key is in docs/reference/train-config.md")
    if known.show_sample is not None:
        sample = known.show_sample
        return Arguments(mode="show-sample", given=given, sample=sample, notes=tuple(notes))
    chosen: tuple[Mode, ...] = ("check", "smoke", "version")
    mode: Mode = next((mode for mode in chosen if getattr(known, mode)), "train")
    return Arguments(mode=mode, given=given, notes=tuple(notes))


def _epilog() -> str:
    """Return what `--help` says after the flags: all keys, by section, and the way to begin."""
    sections: dict[str, list[str]] = {}
    for name, item in FIELDS.items():
        sections.setdefault(item.metadata["section"], []).append(name)
    width = max(map(len, sections)) + 2
    lines = [
        "keys, in the file or as flags (--learning-rate 1e-4);",
        "name_or_path and dataset_path are required, all others have defaults:",
    ]
    for section, names in sections.items():
        first = f"  {section:{width}}"
        lines.append(
            textwrap.fill(
                " ".join(names), 80, initial_indent=first, subsequent_indent=" " * len(first)
            )
        )
    return "\n".join(
        (
            *lines,
            "docs/reference/train-config.md explains each; train/config.example.yaml",
            "",
            "to begin:",
            "  python -m train.tools.demo_assets demo      make a small model and data",
            "  python -m train --config demo/config.yaml   train, here and in one process",
            "  clusterctl launch -- -m train --config ...  train on all nodes",
            "  python -m train.tools.plot demo/output      draw losses and speed",
            "  python -m train.tools.generate --help       ask the model, before and after",
        )
    )


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line as any other problem."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError((message,), hint=f"{self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m train",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Fine-tune a Hugging Face causal language model on as many nodes as there are.",
        epilog=_epilog(),
    )
    parser.add_argument("--config", metavar="FILE", help="the configuration: YAML, JSON or TOML")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="replace one key"
    )
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--version", action="store_true", help="print the versions, and end")
    modes.add_argument("--check", action="store_true", help="say what would not work, and end")
    modes.add_argument(
        "--smoke", action="store_true", help="train, save, resume and export a toy, in seconds"
    )
    modes.add_argument(
        "--show-sample",
        type=int,
        nargs="?",
        const=1,
        metavar="N",
        help="print sample N (from 1) as tokenized, with what is learned, and end",
    )
    return parser


def _composed(path: Path) -> yaml.Node | None:
    """Return the nodes of a YAML, JSON or TOML file; None if it is empty.

    Raises:
        ConfigError: it cannot be read, or it is none of them.
    """
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
    raise ConfigError((problem,))


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
    given = _read_pairs(pairs, problems, notes)
    bases = [source for spelling, _, source in pairs if spelling == "base_model"]
    if bases and "method" not in given:
        notes.append(
            f"{bases[0]}: LoRA is trained without the key adapter, where axolotl trains all "
            "weights; method: full does that here"
        )
    return given


def _pairs(
    node: yaml.MappingNode, path: Path, section: str | None, problems: list[str]
) -> list[tuple[str, Any, str]]:
    """Return (spelling, raw value, source) of a mapping and of the sections in it."""
    found: list[tuple[str, Any, str]] = []
    for key, value in node.value:
        source = f"{path}:{key.start_mark.line + 1}"
        name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
        try:
            found += _pair(name, value, path, section, problems, source)
        except yaml.MarkedYAMLError as error:
            problems.append(f"{source}: {name}: expected plain values, found: {error.problem}")
    return found


def _pair(
    name: str, value: yaml.Node, path: Path, section: str | None, problems: list[str], source: str
) -> list[tuple[str, Any, str]]:
    """Return (spelling, raw value, source) of one key, or of those of a section.

    Raises:
        MarkedYAMLError: the value is of a type that plain YAML has not.
    """
    full = _full(name, section)
    if isinstance(value, yaml.ScalarNode):
        empty = value.tag == "tag:yaml.org,2002:null"
        return [(full, None if empty else value.value, source)]
    is_mapping = isinstance(value, yaml.MappingNode)
    own = own_name(name)
    whole = takes_structure(name) and not (is_mapping and name in section_names())
    if whole or (is_mapping and own in FIELDS and _is_mapping(_kind(own))):
        return [(name if whole else full, _plain(value), source)]
    if isinstance(value, yaml.MappingNode):
        if section is None and name in section_names():
            return _pairs(value, path, name, problems)
        close = nearest(name, section_names()) if section is None else ""
        where = f"; nearest: {close}" if close else ""
        problems.append(f"{source}: {name}: expected a value or a section, found a mapping{where}")
        return []
    items = [item.value for item in value.value if isinstance(item, yaml.ScalarNode)]
    if len(items) < len(value.value):
        if own == "dataset_path":
            return [(full, _plain(value), source)]
        problems.append(f"{source}: {name}: expected a plain list, found one with more in it")
    return [(full, items, source)]


def _plain(node: yaml.Node) -> Any:  # noqa: ANN401  (any YAML)
    """Return a node's value as Python has it."""
    return yaml.safe_load(yaml.serialize(node))


def _full(name: str, section: str | None) -> str:
    """Return `lora_r` for `r` in the section lora: the short names of that section."""
    return f"lora_{name}" if section == "lora" and f"lora_{name}" in FIELDS else name


def _flags(rest: list[str], problems: list[str]) -> list[tuple[str, Any, str]]:
    """Return the flags that argparse left: `--key value`, `--key=value`, or a bare switch."""
    found: list[tuple[str, Any, str]] = []
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            meant = (
                f"; a file is given as --config {word}"
                if word.endswith((".yaml", ".yml", ".toml"))
                else ""
            )
            problems.append(f"{word}: expected a flag (--key value), found a word alone{meant}")
            continue
        flag, equals, value = word.partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        found.append((flag[2:].replace("-", "_"), value, flag))
    return found


def _sets(sets: list[str], problems: list[str]) -> list[tuple[str, Any, str]]:
    """Return the `--set`s; the key may be written `section.key`."""
    found: list[tuple[str, Any, str]] = []
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            problems.append(f"--set {text}: expected KEY=VALUE, found no =")
            continue
        section, _, name = key.strip().replace("-", "_").rpartition(".")
        found.append((_full(name, section), value, f"--set {key}"))
    return found


def _read_pairs(
    pairs: list[tuple[str, Any, str]], problems: list[str], notes: list[str]
) -> dict[str, Given]:
    """Settle spellings, convert values, and refuse a key that is there twice."""
    given: dict[str, Given] = {}
    expanded = ((*pair, source) for name, value, source in pairs for pair in expand(name, value))
    for spelling, raw, source in expanded:
        is_flag = source.startswith("--")
        where = source if is_flag else f"{source}: {spelling}"
        answer = settle(spelling, raw)
        if isinstance(answer, NoEffect):
            notes += [f"{where}: has no effect: {answer.note}"] if answer.note else []
            continue
        if isinstance(answer, str):
            meant = nearest(spelling, OPTIONS) if source == f"--{spelling}" else ""
            problems.append(f"{where}: {f'unknown flag; nearest: --{meant}' if meant else answer}")
            continue
        try:
            new = Given(
                name=answer.name,
                value=convert(answer.name, answer.value),
                source=source,
                weight=answer.weight,
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
    """Return what counts of two spellings of one key in a file.

    Raises:
        ConfigError: they exclude each other.
    """
    if new.name == "report_to":
        return replace(new, value=tuple(dict.fromkeys((*before.value, *new.value))))
    if new.weight == before.weight:
        raise ConfigError((f"expected once, found again (first: {before.source})",))
    return max(before, new, key=lambda given: given.weight)


def convert(  # (the key's own type)
    name: str, raw: str | list[str] | Mapping[str, Any] | None
) -> Any:  # noqa: ANN401
    """Return the text as the key's type.

    Raises:
        ValueError: it is not of that type; the message says what was wanted.
        ConfigError: a data set of a list is not as it must be.
    """
    if name in READERS:
        return READERS[name](raw)
    optional = isinstance(TYPES[name], types.UnionType)
    if optional and (raw is None or (isinstance(raw, str) and raw.lower() in NONE)):
        return None
    kind = _kind(name)
    if _is_mapping(kind):
        return _mapping(raw)
    if isinstance(raw, Mapping):
        raise ValueError(describe(kind))  # noqa: TRY004  (the person's value, not a type error)
    if typing.get_origin(kind) is tuple:
        return _words(raw)
    if name == "eval_dataset_path" and isinstance(raw, list):
        raw = ",".join(raw)
    if not isinstance(raw, str):
        raise ValueError(f"{describe(kind)}")  # noqa: TRY004  (the person's value, not a type error)
    return expanded(raw.strip()) if name in PATHS else _scalar(kind, raw.strip())


def _kind(name: str) -> Any:  # noqa: ANN401  (any of the types a key may have)
    """Return the type of a key, without null."""
    kind = TYPES[name]
    if isinstance(kind, types.UnionType):
        return next(part for part in typing.get_args(kind) if part is not types.NoneType)
    return kind


def _is_mapping(kind: Any) -> bool:  # noqa: ANN401  (as above)
    return typing.get_origin(kind) is Mapping


def _mapping(raw: Any) -> dict[str, Any]:  # noqa: ANN401  (as written)
    """Return a mapping; a flag writes it as YAML does: `{enable_thinking: false}`."""
    try:
        value = yaml.safe_load(raw) if isinstance(raw, str) else raw
        json.dumps(value)
    except (yaml.YAMLError, TypeError):
        value = None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(describe(Mapping[str, Any]))
    return dict(value)


def _words(raw: str | list[str] | None) -> tuple[str, ...]:
    if isinstance(raw, list):
        return tuple(raw)
    return tuple(part.strip(" '\"") for part in (raw or "").strip("[] ").split(",") if part.strip())


def _scalar(kind: Any, raw: str) -> Any:  # noqa: ANN401  (any of the types a key may have)
    if typing.get_origin(kind) is Literal:
        if raw not in typing.get_args(kind):
            raise ValueError(describe(kind))
        return raw
    if kind is bool:
        if raw.lower() not in TRUE | FALSE:
            raise ValueError(describe(kind))
        return raw.lower() in TRUE
    if kind is str:
        return raw
    try:
        number = float(raw)
    except ValueError:
        raise ValueError(describe(kind)) from None
    if number - number != 0 or (kind is int and number != int(number)):
        raise ValueError(describe(kind))
    return int(number) if kind is int else number


def describe(kind: Any) -> str:  # noqa: ANN401  (any of the types a key may have)
    """Return a type as a person says it."""
    if isinstance(kind, types.UnionType):
        return ", or ".join(
            "null" if part is types.NoneType else describe(part) for part in typing.get_args(kind)
        )
    if typing.get_origin(kind) is Literal:
        return " | ".join(typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        of_names = typing.get_args(kind)[0] is str
        return "a list of names" if of_names else "a list of paths with weights"
    if _is_mapping(kind):
        return "a mapping"
    return {bool: "true | false", int: "a whole number", float: "a number", str: "text"}[kind]
