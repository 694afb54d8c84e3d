"""A pytest plugin: asserts are rewritten once, on all cores, before xdist's workers start.

On a fresh checkout each worker would rewrite them for itself, since all are at the same module.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from _pytest.assertion.rewrite import PYC_TAIL, assertstate_key


@pytest.hookimpl(tryfirst=True)  # xdist's own starts the workers
def pytest_sessionstart(session: pytest.Session) -> None:
    """Write what the workers will read in the place of the tests."""
    config = session.config
    if not config.getoption("numprocesses", None) or sys.dont_write_bytecode:
        return
    given = [Path(config.rootpath, each.partition("::")[0]) for each in config.args]
    found = {path for each in given for path in ([each] if each.is_file() else each.rglob("*.py"))}
    tests = {path for path in found if path.name.startswith("test_") or path.stem == "conftest"}
    global _config  # noqa: PLW0603  (the pool's processes are forked with it)
    _config = config
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        list(pool.map(rewrite_one, sorted(tests), chunksize=8))


_config: pytest.Config


def rewrite_one(path: Path) -> None:
    """Do what `AssertionRewritingHook.exec_module` does before it runs the module."""
    folder = rewrite.get_cache_dir(path)
    kept = folder / (path.name[:-3] + PYC_TAIL)
    if rewrite._read_pyc(path, kept) is None and rewrite.try_makedirs(folder):
        source, code = rewrite._rewrite_test(path, _config)
        rewrite._write_pyc(_config.stash[assertstate_key], code, source, kept)
