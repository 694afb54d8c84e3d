"""What an agent compiles is kept for the next one, and only what is this user's alone is run."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from clusterctl.node.agent import loader
from clusterctl.transport import agent

NAME = "clusterctl.node.example"


class Compiling(loader.Importer):
    """Counts what it compiles."""

    count = 0

    def compile(self, name: str) -> CodeType:
        self.count += 1
        return super().compile(name)


def import_example(kept: Path, value: int = 1) -> Compiling:
    """Import a module as an agent does."""
    own = zlib.decompress(loader.read_sources()[loader.ENTRY])
    deflate = zlib.compressobj(zdict=own)
    source = deflate.compress(b"value = %d" % value) + deflate.flush()
    importer = Compiling({loader.ENTRY: zlib.compress(own), NAME: source}, kept=str(kept))
    module = ModuleType(NAME)
    importer.exec_module(module)
    assert module.value == value
    return importer


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The folder of compiled modules, in a state folder."""
    return tmp_path / "state/.compiled"


def test_a_module_is_compiled_once(kept: Path) -> None:
    assert import_example(kept).count == 1
    assert import_example(kept).count == 0
    assert import_example(kept, value=2).count == 1  # another version of it takes its place
    assert import_example(kept, value=2).count == 0
    assert len(list(kept.iterdir())) == 1
    assert kept.stat().st_mode & 0o077 == 0


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def garble(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def let_others_write(file: Path) -> None:
    file.chmod(0o620)


def give_away(file: Path) -> None:
    if os.getuid():
        pytest.skip("only root can")
    os.chown(file, 65534, -1)


def put_link(file: Path) -> None:
    file.symlink_to(file.rename(file.parent.parent / "elsewhere"))


def put_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    "spoil", [cut, garble, empty, let_others_write, give_away, put_link, put_pipe]
)
def test_a_file_that_is_broken_or_others_may_write_is_replaced(
    kept: Path, spoil: Callable[[Path], None]
) -> None:
    import_example(kept)
    (file,) = kept.iterdir()
    spoil(file)
    assert import_example(kept).count == 1
    assert import_example(kept).count == 0
    assert list(kept.iterdir()) == [file]


@pytest.mark.parametrize("spoil", [let_others_write, give_away, put_link])
def test_nothing_is_read_from_or_written_to_a_folder_that_others_may_write(
    kept: Path, spoil: Callable[[Path], None]
) -> None:
    import_example(kept)
    (file,) = kept.iterdir()
    before = file.read_bytes()
    spoil(kept)
    assert import_example(kept).count == 1
    assert import_example(kept, value=2).count == 1
    assert file.read_bytes() == before


def test_a_state_folder_that_takes_no_file_does_no_harm(kept: Path) -> None:
    kept.parent.mkdir()
    kept.write_text("no folder")
    importer = import_example(kept)
    assert (importer.count, importer.kept) == (1, "")  # it does not try again


def test_a_start_keeps_what_the_controller_compiled(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = loader.read_sources()
    importer = loader.Importer(sources, agent.compiled_for("start"), identity="this")
    monkeypatch.setattr(loader, "_installed", importer)
    text = loader.program(kept=str(kept))
    found = {file.name.rpartition(".")[0] for file in kept.iterdir()}
    assert found == agent.modules_of("start").keys()
    assert loader.is_this_agent(text[: loader.FIRST_BYTES])
    assert text != loader.program()
