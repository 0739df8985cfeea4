"""BatchFolder: the files of stored batches on disk.

    FOLDER/lock                 held by the server that uses the folder
    FOLDER/files/ID.jsonl       contents, and FOLDER/files/ID.json, which makes it a file
    FOLDER/batches/ID.json      a batch and its state

A description is written as a whole: beside its name, to disk, then renamed. So a server that ends
at any moment leaves the old or the new one. Contents without a description are those of uploads
that were not finished, which `remove_rest` deletes, or of batches that are under way. Names on disk
are ids of ours alone. Blocking.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from atom.entrypoints.stored_batches.records import (
    BatchRecord,
    StoredFile,
    is_batch_id,
    is_file_id,
)
from atom.errors import ConfigError

_PART = ".part"
Kept = TypeVar("Kept", StoredFile, BatchRecord)


class BatchFolder:
    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` if the folder cannot be used, or another server uses it."""
        self._files, self._batches = path / "files", path / "batches"
        try:
            for folder in (self._files, self._batches):
                folder.mkdir(parents=True, exist_ok=True)
                _check_writable(folder)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"--batch-dir {path}: cannot be used ({error})") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(
                f"--batch-dir {path}: another server uses it; give each server another folder"
            ) from None

    def close(self) -> None:
        os.close(self._lock)

    def content(self, file_id: str) -> Path:
        """Return the path of a file's contents."""
        assert is_file_id(file_id)
        return self._files / f"{file_id}.jsonl"

    def files(self) -> list[StoredFile]:
        """Read the descriptions of all files that have contents."""
        found = _read_all(self._files, StoredFile)
        return [each for each in found if is_file_id(each.id) and self.content(each.id).exists()]

    def batches(self) -> list[BatchRecord]:
        return [each for each in _read_all(self._batches, BatchRecord) if is_batch_id(each.id)]

    def write_file(self, file: StoredFile) -> None:
        """Make contents that are complete a file. They are on disk before."""
        with self.content(file.id).open("rb") as content:
            os.fsync(content.fileno())
        _write_whole(self._files / f"{file.id}.json", msgspec.json.encode(file))

    def write_batch(self, batch: BatchRecord) -> None:
        assert is_batch_id(batch.id)
        _write_whole(self._batches / f"{batch.id}.json", msgspec.json.encode(batch))

    def remove_file(self, file_id: str) -> None:
        """Remove a file, or contents that became none. The description goes first."""
        (self.content(file_id).with_suffix(".json")).unlink(missing_ok=True)
        self.content(file_id).unlink(missing_ok=True)

    def remove_batch(self, batch_id: str) -> None:
        assert is_batch_id(batch_id)
        (self._batches / f"{batch_id}.json").unlink(missing_ok=True)

    def remove_rest(self, kept: Collection[str]) -> None:
        """Remove the rest of writes that were not finished. kept: ids of contents that batches
        which are under way will need."""
        for folder in (self._files, self._batches):
            for path in folder.glob(f"*{_PART}"):
                path.unlink()
        for path in self._files.glob("*.jsonl"):
            if path.stem not in kept and not path.with_suffix(".json").exists():
                path.unlink()

    def size_bytes(self) -> int:
        """Sum up the contents of all files."""
        return sum(path.stat().st_size for path in self._files.glob("*.jsonl"))


def _read_all(folder: Path, kind: type[Kept]) -> Iterator[Kept]:
    """Yield the descriptions of a folder; a file that is none is passed over. Raises `ConfigError`
    for one that cannot be read: its batch's answers would be taken for the rest of a write."""
    for path in sorted(folder.glob("*.json")):
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"--batch-dir: {path.name} cannot be read ({error.strerror}); mend its permissions "
                "or the disk, or move the file away"
            ) from error
        with contextlib.suppress(msgspec.MsgspecError):
            found = msgspec.json.decode(data, type=kind)
            if found.id == path.stem:
                yield found


def _check_writable(folder: Path) -> None:
    """Raises `OSError` if no file can be made in the folder."""
    probe = folder / f"{secrets.token_hex(8)}{_PART}"
    probe.touch(0o600)
    probe.unlink()


def _write_whole(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}{_PART}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    part.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
