"""Opens the folders below a root one by one, so that no link leads out of it."""

from __future__ import annotations

import contextlib
import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class RootFolder:
    """Gives descriptors of folders below a root; keeps the last one, as paths come sorted."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._folder: Optional[bytes] = None
        self._descriptor = -1

    def __enter__(self) -> RootFolder:  # noqa: PYI034  (Python 3.9 has no Self)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def parent(self, path: bytes, *, make: bool = False) -> int:
        """Return a descriptor of the folder that holds a path, valid until the next call.

        `make`: make the folders that are missing.

        Raises:
            NotADirectoryError: a folder on the way is a link or a file.
            FileNotFoundError: one is missing.
        """
        folder = os.path.dirname(path)
        if folder != self._folder:
            self._close()
            self._descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
            for part in filter(None, folder.split(b"/")):
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=self._descriptor)
                try:
                    below = os.open(part, flags, dir_fd=self._descriptor)
                except OSError as error:
                    if error.errno != errno.ELOOP:
                        raise
                    raise NotADirectoryError(errno.ENOTDIR, "a link", path) from error
                os.close(self._descriptor)
                self._descriptor = below
            self._folder = folder
        return self._descriptor

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._folder = -1, None
