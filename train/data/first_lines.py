"""What the first lines of each data set show before a training, for `--check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from train.config.config import Config
from train.data import dataset, formats, hub, stored
from train.data.chat.template import DATE
from train.data.dataset import label
from train.data.encoding import Encoded
from train.data.files import lines
from train.data.files.bad_line import BadLine
from train.data.formats import Rules
from train.data.tally import Tally
from train.errors import ConfigError, counted
from train.finding import Finding, State, refused
from train.object_store import is_url

LOOKED_AT = 100


def data_sets(config: Config) -> Iterator[Finding]:
    """Report each data set: its files, its lines, its share of an epoch."""
    found = [_dataset(config, *each) for each in formats.named(config)]
    seen = [each.weight * size for each, (_, size) in zip(config.datasets, found, strict=False)]
    for each, size, (finding, _) in zip(config.datasets, seen, found, strict=False):
        if len(seen) == 1 or finding.state == "fail":
            yield finding
            continue
        # Only the start counts tokens: the banner has their shares.
        share = f"about {size / sum(seen):.0%} of the bytes of an epoch"
        share = share if all(seen) else "its share is known once all of them are on this node"
        yield replace(finding, said=f"{finding.said}; weight {each.weight:g}, {share}")
    yield from (finding for finding, _ in found[len(seen) :])


def _dataset(config: Config, key: str, name: str, rules: Rules) -> tuple[Finding, float]:
    """Return what was found of a data set, and its bytes as JSON lines; 0 if they are unknown."""
    if hub.is_hub_dataset(name):
        return Finding("data", f"{name} is a hub id: downloaded at start"), 0
    try:
        if is_url(name):
            said = ", ".join(
                stored.in_words(stored.find(part, key=key)[1]) for part in hub.parts(name)
            )
            when = "each downloaded as it is reached" if config.stream else "downloaded at start"
            return Finding("data", f"{name}: {said}, {when}"), 0
        files = hub.dataset_files(name, config, key=key)
        return _lines(config, label(config, key, name), files, rules)
    except ConfigError as error:
        return refused("data", error), 0


def _lines(
    config: Config, named: str, files: tuple[Path, ...], rules: Rules
) -> tuple[Finding, float]:
    """Look at the first lines: enough to see a wrong file, not to see one wrong line."""
    columns = frozenset(rules.columns_of_lines.values())
    first = list(islice(lines.read(files, columns=columns), LOOKED_AT))
    bad, chats = [], False
    for line in first:
        try:
            chats = formats.is_chat(rules.record_of(line.content), rules) or chats
        except BadLine as error:
            bad.append(f"{line.where}: {error}")
    size = sum(path.stat().st_size for path in files)
    if not first:
        return Finding("data", f"{named}: expected lines, found none", "fail"), 0
    if len(bad) > config.max_bad_lines:
        return Finding("data", f"{bad[0]} ({len(bad)} of {len(first)} bad)", "fail"), 0
    templates = _templates(Path(config.name_or_path)) if chats else None
    if templates == []:
        said = f"{named}: expected a chat template in the model's folder for messages, found none"
        return Finding("data", said, "fail"), 0
    each = sum(len(line.content) for line in first if isinstance(line.content, bytes)) / len(first)
    count = lines.count(files, each) if each else len(first)
    names = files[0].name + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    said = f"{named}: {names}, {size / 2**20:.1f} MiB, about {counted(count, 'line')}"
    if any("strftime_now" in text for text in templates or ()):
        said += f"; the chat template prints the date as {DATE:%Y-%m-%d} on every day"
    return Finding("data", said), count * each


def learned(config: Config) -> Iterator[Finding]:
    """Read the first lines as the training will: say what is learned of them, and what is wrong."""
    if any(hub.is_hub_dataset(name) or is_url(name) for _, name, _ in formats.named(config)):
        return
    try:
        tokenizer = dataset.load_tokenizer(hub.model_folder(config), config)
        for located in dataset.locate(config):
            first = list(islice(dataset.preview(config, located, tokenizer), LOOKED_AT))
            yield from _of_first(config, located.label, first)
    except ConfigError as error:
        yield refused("data", error)


def _of_first(config: Config, named: str, first: Sequence[Encoded]) -> Iterator[Finding]:
    tally = Tally()
    for sample in chain.from_iterable(each.samples for each in first):
        if sample.tally:
            tally.add(sample.tally)
    of_first = f"{named}, first {len(first)} lines" if len(first) > 1 else f"{named}, first line"
    for note in tally.notes():
        yield Finding("data", f"{of_first}: {note}")
    dropped = [each.reason for each in first if each.usable and each.reason]
    if dropped:
        said = f"{of_first}: {counted(len(dropped), 'line')} {dropped[0]}"
        yield Finding("data", said, "warn" if len(dropped) < len(first) else "fail")
    bad = [f"{each.line.where}: {each.reason}" for each in first if not each.usable]
    if bad:
        state: State = "fail" if len(bad) > config.max_bad_lines else "warn"
        yield Finding("data", f"{bad[0]} ({len(bad)} of {len(first)} bad)", state)


def _templates(folder: Path) -> list[str] | None:
    """Return the files with a model's chat templates; None if the folder is not here yet."""
    if not folder.is_dir():
        return None
    texts = {
        name: (folder / name).read_text(encoding="utf-8", errors="replace")
        for name in ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
        if (folder / name).is_file()
    }
    return [t for name, t in texts.items() if name.endswith(".jinja") or '"chat_template"' in t]
