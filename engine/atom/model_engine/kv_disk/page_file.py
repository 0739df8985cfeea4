"""Page files: one page of the KV cache in a file, with a header that proves it.

A file is a header of 64 bytes and a body. It is written under a temporary name and then renamed, so
that no reader sees a part of it. A reader trusts nothing of a file: size, owner, header and the
checksum of the body must agree with the page that is looked for. Any file that does not is damaged.
Knows no threads and no policy; used by DiskStore's threads.

    magic "ATKV" · version u16 · kind u16 · layout 16 · name 16 · tokens u64 · bytes u64 · sum u64
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import xxhash

MAGIC = b"ATKV"
VERSION = 2
HEADER = Struct("<4sHH16s16sQQQ")
SUFFIX = ".page"
TEMPORARY = ".tmp-"
NAME_BYTES = 16


class DamagedPageError(Exception):
    """Raised for a file that is not the page that its name promises."""


@dataclass(frozen=True, slots=True)
class PageLabel:
    """Describes the page of a file, as its header does. layout, name: 16 bytes each; kind: the
    group of layers, or the number of groups for a checkpoint of states; tokens: of the block."""

    layout: bytes
    name: bytes
    kind: int
    tokens: int

    def header(self, page: memoryview) -> bytes:
        """Return the header of a file whose body is this page."""
        return HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.layout,
            self.name,
            self.tokens,
            page.nbytes,
            xxhash.xxh3_64_intdigest(page),
        )


def page_path(folder: Path, name: bytes) -> Path:
    """Return the place of a page below a layout's folder."""
    digits = name.hex()
    return folder / digits[:2] / f"{digits}{SUFFIX}"


def write_page(folder: Path, label: PageLabel, page: memoryview, mark: str) -> int:
    """Write a page and make it visible at once; returns the bytes of the file. mark: a name that no
    other writer has at this time. Raises `OSError`, and leaves no file then."""
    path = page_path(folder, label.name)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = path.parent / f"{TEMPORARY}{mark}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o600)
    try:
        try:
            size = _write_all(descriptor, label.header(page), page)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except IsADirectoryError as error:
        _remove(temporary)
        raise DamagedPageError("a folder") from error
    except BaseException:
        _remove(temporary)
        raise
    return size


def read_page(folder: Path, label: PageLabel, page: memoryview) -> int:
    """Fill `page`, which has the size of the file's body; returns the bytes of the file, and counts
    a use of it. Raises `DamagedPageError` or `OSError`; `page` is worthless then."""
    path = page_path(folder, label.name)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DamagedPageError("a link") from error
        raise
    try:
        _check_file(os.fstat(descriptor), HEADER.size + page.nbytes)
        header = bytearray(HEADER.size)
        _read_all(descriptor, memoryview(header), page)
        if bytes(header) != label.header(page):
            raise DamagedPageError(_difference(bytes(header), label))
        _count_use(descriptor)
    finally:
        os.close(descriptor)
    return HEADER.size + page.nbytes


def remove_page(folder: Path, name: bytes) -> None:
    """Remove a page that is damaged or wanted no longer, if there is one."""
    _remove(page_path(folder, name))


def _check_file(found: os.stat_result, size: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise DamagedPageError("no regular file")
    if found.st_uid != os.geteuid():
        raise DamagedPageError("a file of another user")
    if found.st_size != size:
        raise DamagedPageError(f"{found.st_size} bytes instead of {size}")


def _difference(header: bytes, label: PageLabel) -> str:
    """Name the first field of a header that differs."""
    magic, version, kind, layout, name, tokens, _, _ = HEADER.unpack(header)
    fields = {
        "magic": (magic, MAGIC),
        "version": (version, VERSION),
        "layout": (layout, label.layout),
        "name": (name, label.name),
        "kind": (kind, label.kind),
        "tokens": (tokens, label.tokens),
    }
    return next((f"another {key}" for key, (a, b) in fields.items() if a != b), "another checksum")


def _write_all(descriptor: int, *parts: bytes | memoryview) -> int:
    total = 0
    for part in parts:
        view = memoryview(part).cast("B")
        total += view.nbytes
        while view.nbytes:
            view = view[os.write(descriptor, view) :]
    return total


def _read_all(descriptor: int, *parts: memoryview) -> None:
    for part in parts:
        view = part.cast("B")
        while view.nbytes:
            count = os.readv(descriptor, [view])
            if not count:
                raise DamagedPageError("the file ends early")
            view = view[count:]


def _count_use(descriptor: int) -> None:
    """Let the file be evicted after the files that were used before."""
    try:
        os.utime(descriptor)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOENT):
            raise


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        with contextlib.suppress(OSError):  # it is not empty, and no page has its name
            path.rmdir()
