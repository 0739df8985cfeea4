"""DiskFolder: the folder of page files of one cache layout, which several servers share.

    <root>/atom-kv-1/<layout digest>/<first two digits>/<name>.page

All servers of a layout write to the same folder, and find each other's pages by listing it. The
only lock is the rename of a file. Each server keeps the whole root, of all layouts, below its size:
it removes the files that were used longest ago. A file that another server removes meanwhile is no
error. Temporary files whose writer is gone are removed when they are old. One thread lists, and any
thread adds and removes pages. Knows no blocks. Used by FileStore.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from atom.errors import ConfigError
from atom.model_engine.kv_disk.page_file import NAME_BYTES, SUFFIX, TEMPORARY, remove_page

ROOT = "atom-kv-1"
STALE_SECONDS = 600.0  # no page takes so long to be written
_LISTINGS = 64  # at least, while one server fills the folder
_LEAST_USED = 0.9  # share of the size that is left when files are removed


@dataclass(frozen=True, slots=True)
class _Listed:
    """A file that a listing found. used: seconds since 1970."""

    path: Path
    size: int
    used: float


class DiskFolder:
    """Keeps the files of a layout. names: pages that were there at the last listing, or were
    written since; used_bytes: of all files of the root, as far as they are known."""

    def __init__(
        self, root: Path, layout: str, size_bytes: int, clock: Callable[[], float]
    ) -> None:
        """layout: the digest, 32 hexadecimal digits; clock: in seconds since 1970."""
        self._root, self.size_bytes, self._clock = root / ROOT, size_bytes, clock
        self.path, self.layout = self._root / layout, bytes.fromhex(layout)
        self.names: set[bytes] = set()
        self.used_bytes = 0
        self._lock = threading.Lock()
        self._added: dict[bytes, int] = {}  # pages that were written since a listing began
        self._added_bytes = 0

    def of_layout(self, layout: str) -> DiskFolder:
        """Return the folder of another layout below the same root; its pages are not listed."""
        return DiskFolder(self._root.parent, layout, self.size_bytes, self._clock)

    def open(self) -> None:
        """Make the folders. Raises `OSError`; `PermissionError` for a folder of another user."""
        for folder in (self._root, self.path):
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            if not folder.is_dir() or folder.is_symlink():
                raise NotADirectoryError(f"{folder} is no folder")
            if found.st_uid != os.geteuid():
                raise PermissionError(f"{folder} belongs to user {found.st_uid}, and is not used")

    def added(self, name: bytes, size: int) -> None:
        """Count a page that was written."""
        with self._lock:
            self.names.add(name)
            self._added[name] = size
            self._added_bytes += size
            self.used_bytes += size

    def forget(self, name: bytes) -> None:
        """Remove a page."""
        with self._lock:
            self.names.discard(name)
            self._added.pop(name, None)
        remove_page(self.path, name)

    def list_pages(self) -> list[bytes]:
        """List the root anew, and remove stale temporary files and, if the pages exceed the size,
        those that were used longest ago. Returns the pages of this layout that are gone."""
        with self._lock:
            self._added, self._added_bytes = {}, 0
        files, now = list(self._files()), self._clock()
        pages = []
        for each in files:
            if not each.path.name.startswith(TEMPORARY):
                pages.append(each)
            elif now - each.used > STALE_SECONDS:
                each.path.unlink(missing_ok=True)
        used = sum(each.size for each in pages)
        removed = self._shrink(pages, used)
        own = [each.path for each in pages if each.path.parent.parent == self.path]
        listed = {name for path in own if (name := _name_of(path)) is not None}
        names = listed - {_name_of(path) for path in own if path in removed}
        with self._lock:
            names.update(self._added)
            gone, self.names = self.names - names, names
            freed = sum(removed.values())
            unlisted = sum(size for name, size in self._added.items() if name not in listed)
            self.used_bytes = used - freed + unlisted
        return list(gone)

    @property
    def needs_listing(self) -> bool:
        """Return whether so much was written since the last listing that the size may be
        exceeded, since other servers write, too."""
        return self.is_full or self._added_bytes * _LISTINGS > self.size_bytes

    @property
    def is_full(self) -> bool:
        """Return whether the files exceed the size."""
        return self.used_bytes > self.size_bytes

    def clear(self) -> None:
        """Remove the pages of this layout. Its folders stay: a page may be written to them now, by
        another thread or server."""
        with self._lock:
            self.names, self._added = set(), {}
        for each in _files_of(self.path):
            if not each.path.name.startswith(TEMPORARY):
                each.path.unlink(missing_ok=True)

    def _shrink(self, pages: list[_Listed], used_bytes: int) -> dict[Path, int]:
        """Remove the files that were used longest ago, if there are too many bytes; returns them
        with their sizes."""
        removed: dict[Path, int] = {}
        if used_bytes <= self.size_bytes:
            return removed
        for each in sorted(pages, key=lambda page: page.used):
            if used_bytes <= _LEAST_USED * self.size_bytes:
                break
            each.path.unlink(missing_ok=True)
            removed[each.path] = each.size
            used_bytes -= each.size
        return removed

    def _files(self) -> Iterator[_Listed]:
        """Yield the files two folders below the root. Others and links are left alone."""
        for layout in _folders(self._root):
            yield from _files_of(layout)


def _files_of(layout: Path) -> Iterator[_Listed]:
    """Yield the files of a layout, except those that another server removes meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        for part in _folders(layout):
            yield from _files_in(part)


def _files_in(part: Path) -> Iterator[_Listed]:
    with contextlib.suppress(FileNotFoundError), os.scandir(part) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # another server removed it; the next ones are there
                    continue
                yield _Listed(Path(entry.path), found.st_size, found.st_mtime)


def _folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]


def _name_of(path: Path) -> bytes | None:
    """Return the name in a file's name; None for any other file."""
    digits = path.name.removesuffix(SUFFIX)
    if len(digits) != 2 * NAME_BYTES or digits[:2] != path.parent.name:
        return None
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return None


def check_folder(root: Path) -> None:
    """Raise `ConfigError` unless page files can be kept in a folder."""
    flag = f"--kv-disk-dir {root}"
    if not root.is_dir():
        raise ConfigError(f"{flag}: there is no such folder; make it, or name another one")
    try:
        DiskFolder(root, "0" * 32, 0, lambda: 0.0).open()
    except OSError as error:
        raise ConfigError(
            f"{flag}: {error.strerror or error}; name a folder that this user may write to"
        ) from error
