"""Files in object stores (`s3://bucket/path`), by fsspec: read, sent, brought, tried again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from train.errors import ConfigError, without_credentials

T = TypeVar("T")
WAITS = (1.0, 4.0, 15.0, 60.0)
"""Seconds between tries of what a start waits for."""
LONGEST_WAIT = 300.0
FINAL = {"FileNotFoundError", "PermissionError", "NoCredentialsError", "PartialCredentialsError"}
"""Names of errors that another try would only repeat; those of a store need its package."""


def is_url(name: str) -> bool:
    """Whether a name is that of something in a store, and not of a file here."""
    return "://" in name


def growing() -> Iterator[float]:
    """Yield waits without an end, for what may take days to work again."""
    yield from (min(2.0**number, LONGEST_WAIT) for number in itertools.count())


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder, or a file, in a store."""

    url: str
    path: str
    """As the store's own package has it."""
    system: Any

    @classmethod
    def at(cls, url: str, *, key: str) -> Folder:
        """Open it, without asking the store; a ConfigError names `key`."""
        from fsspec.core import url_to_fs

        from train.versions import install

        url = url.rstrip("/")
        try:
            system, path = url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            package = "s3fs" if url.startswith("s3") else ""
            raise ConfigError(
                f"{key}: expected the package that reads {url}, found: {error}",
                hint=f"on every node: {install(**{package: ''})}" if package else None,
            ) from error
        except ValueError as error:  # a protocol that fsspec does not know
            raise ConfigError(f"{key}: {without_credentials(url)}: {error}") from error
        return cls(without_credentials(url), path, system)

    def __truediv__(self, name: str) -> Folder:
        """Return what is below it."""
        return Folder(f"{self.url}/{name}", f"{self.path}/{name}", self.system)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> Folder:
        """The folder that it is in."""
        return Folder(self.url.rpartition("/")[0], self.path.rpartition("/")[0], self.system)

    def read(self) -> bytes | None:
        """Return what a small file holds; None if there is none."""
        try:
            found: bytes = self.system.cat_file(self.path)
        except FileNotFoundError:
            return None
        return found

    def write(self, content: bytes) -> None:
        """Write a small file, whole or not at all."""
        self.system.pipe_file(self.path, content)

    def size(self) -> int | None:
        """Return the bytes of a file; None if there is none."""
        try:
            return int(self.system.info(self.path)["size"])
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """Return what is in it."""
        try:
            return sorted(path.rpartition("/")[2] for path in self.system.ls(self.path, False))
        except FileNotFoundError:
            return []

    def send(self, file: Path) -> None:
        """Upload a file to here, and verify its size there."""
        self.system.put_file(str(file), self.path)
        wanted, found = file.stat().st_size, self.size()
        if found != wanted:
            raise OSError(f"{self.url}: expected {wanted} bytes after the upload, found {found}")

    def bring(self, file: Path) -> None:
        """Download a file from here."""
        self.system.get_file(self.path, str(file))

    def remove(self) -> None:
        """Remove a file, if there is one."""
        try:
            self.system.rm_file(self.path)
        except FileNotFoundError:
            return


def is_final(error: Exception) -> bool:
    """Whether another try would only repeat an error."""
    return type(error).__name__ in FINAL


def words(error: BaseException) -> str:
    """Return a store's error in one line, without what an address in it may hold.

    It begins with S3's own name of it, if there is one: Ceph sends nothing else.
    """
    answer = getattr(error.__cause__, "response", None)
    code = answer.get("Error", {}).get("Code", "") if isinstance(answer, dict) else ""
    said = "" if error.args[-1:] == (None,) else " ".join(str(error).split())[:300]
    return without_credentials(": ".join(filter(None, (type(error).__name__, code, said))))


def patiently(
    work: Callable[[], T],
    *,
    tell: Callable[[str], None],
    waits: Iterable[float] = WAITS,
    final: Callable[[Exception], bool] = is_final,
) -> T:
    """Return what work returns; try it again after each of the waits."""
    for wait in waits:
        try:
            return work()
        except Exception as error:
            if final(error):
                raise
            tell(f"{words(error)}; trying again in {wait:.0f} s")
            time.sleep(wait)
    return work()


def ask(folder: Folder, work: Callable[[], T], *, key: str, tell: Callable[[str], None]) -> T:
    """Return what work returns, patiently; a ConfigError names `key` and what to set."""
    try:
        return patiently(work, tell=tell)
    except Exception as error:
        raise unreachable(folder, error, key=key) from error


def unreachable(folder: Folder, error: Exception, *, key: str) -> ConfigError:
    """Return what to say of a store that cannot be used."""
    hint = None
    if is_final(error) and not isinstance(error, FileNotFoundError):
        hint = (
            "credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
            "AWS_ENDPOINT_URL): name these variables in env_from of the job; an upload needs "
            "s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject"
        )
    return ConfigError(f"{key}: expected to use {folder.url}, found {words(error)}", hint=hint)
