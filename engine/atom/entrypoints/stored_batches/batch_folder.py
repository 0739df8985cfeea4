"""BatchFolder: the files of stored batches on disk, shared by the servers of one folder.

    FOLDER/lock                 held together by the servers that use the folder
    FOLDER/turn                 held by the server that changes descriptions, for a moment
    FOLDER/claims/OWNER         held by the server that answers an owner's batch
    FOLDER/files/ID.jsonl       contents, and FOLDER/files/ID.json, which makes it a file
    FOLDER/batches/ID.json      a batch and its state

A description is written as a whole: beside its name, to disk, then renamed. So a server that ends
at any moment leaves the old or the new one. Contents without a description are those of uploads
that were not finished, which `remove_rest` deletes, or of batches that are under way. The system
releases the locks of a server that ends, also by a kill. Names on disk are ids of ours alone.
Blocking.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from atom.entrypoints.stored_batches.records import (
    BatchRecord,
    StoredFile,
    is_batch_id,
    is_file_id,
)
from atom.errors import ConfigError

_PART = ".part"
_ABANDONED_SECONDS = 3600.0  # an upload that sends nothing for minutes is refused long before
_START_SECONDS, _LOOK_SECONDS = 10.0, 0.05  # for which a server may have the folder alone
Kept = TypeVar("Kept", StoredFile, BatchRecord)


class BatchFolder:
    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` if the folder cannot be used, or a server uses it alone."""
        self._files, self._batches = path / "files", path / "batches"
        self._claims = path / "claims"
        # By folder: descriptions as they were read last, each with its file's version.
        self._known: dict[Path, dict[Path, tuple[tuple[int, ...], Any]]] = {}
        self._counted: dict[Path, tuple[int, int]] = {}
        self._within = threading.Lock()  # the threads of this process, which share `turn`
        self._held: list[int] = []
        try:
            self._open(path)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise ConfigError(f"--batch-dir {path}: cannot be used ({error})") from error
            raise

    def _open(self, path: Path) -> None:
        for folder in (self._files, self._batches, self._claims):
            folder.mkdir(parents=True, exist_ok=True)
            _check_writable(folder)
        for name in ("lock", "turn"):
            self._held.append(_opened(path / name))
        lock, self._turn = self._held
        is_alone = _locked(lock, fcntl.LOCK_EX)
        until = time.monotonic() + _START_SECONDS
        while not is_alone and not _locked(lock, fcntl.LOCK_SH):  # another one starts
            if time.monotonic() >= until:
                raise ConfigError(
                    f"--batch-dir {path}: a server of another version uses it alone; end that "
                    "server, or give this one another folder"
                )
            time.sleep(_LOOK_SECONDS)
        self.remove_rest(_ABANDONED_SECONDS if not is_alone else None)
        fcntl.flock(lock, fcntl.LOCK_SH)

    def close(self) -> None:
        while self._held:
            os.close(self._held.pop())

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold off the changes that other servers and threads would make meanwhile."""
        with self._within:
            fcntl.flock(self._turn, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._turn, fcntl.LOCK_UN)

    def claim(self, owner: str) -> int | None:
        """Take an owner's batches for this server alone: returns a descriptor that holds them
        until it is closed; None while another server holds them."""
        name = hashlib.sha256(owner.encode()).hexdigest()[:32]
        held = _opened(self._claims / name)
        if _locked(held, fcntl.LOCK_EX):
            return held
        os.close(held)
        return None

    # ---- files and batches --------------------------------------------------------------------

    def content(self, file_id: str) -> Path:
        """Return the path of a file's contents."""
        assert is_file_id(file_id)
        return self._files / f"{file_id}.jsonl"

    def files(self) -> list[StoredFile]:
        """Read the descriptions of all files that have contents."""
        found = self._read_all(self._files, StoredFile)
        return [each for each in found if is_file_id(each.id) and self.content(each.id).exists()]

    def batches(self) -> list[BatchRecord]:
        return [each for each in self._read_all(self._batches, BatchRecord) if is_batch_id(each.id)]

    def write_file(self, file: StoredFile) -> None:
        """Make contents that are complete a file. They are on disk before."""
        with self.content(file.id).open("rb") as content:
            os.fsync(content.fileno())
        with self.turn():
            _write_whole(self._files / f"{file.id}.json", msgspec.json.encode(file))

    def add_batch(self, batch: BatchRecord) -> bool:
        """Write a new batch. Returns False, and writes none, if its input was deleted."""
        with self.turn():
            is_there = self.content(batch.order.input_file_id).with_suffix(".json").exists()
            if is_there:
                self.write_batch(batch)
        return is_there

    def change_batch(
        self, batch_id: str, change: Callable[[BatchRecord], BatchRecord]
    ) -> BatchRecord:
        """Replace a batch by `change` of its state on disk, and return the new state."""
        assert is_batch_id(batch_id)
        with self.turn():
            data = (self._batches / f"{batch_id}.json").read_bytes()
            before = msgspec.json.decode(data, type=BatchRecord)
            after = change(before)
            if after is not before:
                self.write_batch(after)
        return after

    def write_batch(self, batch: BatchRecord) -> None:
        """Write a batch. For the holder of the turn."""
        assert is_batch_id(batch.id)
        _write_whole(self._batches / f"{batch.id}.json", msgspec.json.encode(batch))

    def remove_unneeded(self, file_id: str) -> str | None:
        """Remove a file, unless an open batch needs it: returns the id of that batch."""
        with self.turn():
            for batch in self.batches():
                if batch.is_open and batch.order.input_file_id == file_id:
                    return batch.id
            self.remove_file(file_id)
        return None

    def remove_file(self, file_id: str) -> None:
        """Remove a file, or contents that became none. The description goes first."""
        (self.content(file_id).with_suffix(".json")).unlink(missing_ok=True)
        self.content(file_id).unlink(missing_ok=True)
        self._counted.pop(self.content(file_id), None)

    def remove_batch(self, batch_id: str) -> None:
        assert is_batch_id(batch_id)
        (self._batches / f"{batch_id}.json").unlink(missing_ok=True)

    def remove_rest(self, least_age_seconds: float | None = _ABANDONED_SECONDS) -> None:
        """Remove the rest of writes that were not finished. least_age_seconds: since the last
        write to contents that another server may still write; None if there is no other."""
        with self.turn():  # no other server is within a write
            for folder in (self._files, self._batches, self._claims):
                for path in folder.glob(f"*{_PART}"):
                    path.unlink()
            # Before the batches are read: a batch is on disk before its answers are.
            contents = list(self._files.glob("*.jsonl"))
            needed = {
                file_id
                for batch in self.batches()
                if batch.is_open
                for file_id in (batch.output_id, batch.error_id)
            }
            for path in contents:
                if path.stem in needed or path.with_suffix(".json").exists():
                    continue
                if least_age_seconds is None or _age_seconds(path) > least_age_seconds:
                    path.unlink(missing_ok=True)

    def size_bytes(self) -> int:
        """Sum up the contents of all files."""
        return sum(_size(path) for path in self._files.glob("*.jsonl"))

    def num_lines(self, file_id: str) -> int:
        """Count the whole lines of contents that grow, from where the last call ended."""
        path = self.content(file_id)
        start, count = self._counted.get(path, (0, 0))
        with contextlib.suppress(FileNotFoundError), path.open("rb") as content:
            content.seek(start)
            at = start
            while block := content.read(2**20):
                count += block.count(b"\n")
                if b"\n" in block:  # a line that is cut is written anew
                    start = at + block.rfind(b"\n") + 1
                at += len(block)
            self._counted[path] = (start, count)
        return count

    def _read_all(self, folder: Path, kind: type[Kept]) -> list[Kept]:
        """Read the descriptions of a folder; a file that is none is passed over, and one that was
        read before and has not changed is not read again. Raises `ConfigError` for one that cannot
        be read: its batch's answers would be taken for the rest of a write."""
        before, found = self._known.get(folder, {}), dict[Path, tuple[tuple[int, ...], Any]]()
        for path in sorted(folder.glob("*.json")):
            try:
                state = path.stat()
                version = (state.st_ino, state.st_mtime_ns, state.st_size)
                known = before.get(path)
                if known is not None and known[0] == version:
                    found[path] = known
                    continue
                data = path.read_bytes()
            except FileNotFoundError:  # another server removed it
                continue
            except OSError as error:
                raise ConfigError(
                    f"--batch-dir: {path.name} cannot be read ({error.strerror}); mend its "
                    "permissions or the disk, or move the file away"
                ) from error
            with contextlib.suppress(msgspec.MsgspecError):
                read = msgspec.json.decode(data, type=kind)
                if read.id == path.stem:
                    found[path] = (version, read)
        self._known[folder] = found
        return [each for _, each in found.values()]


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _locked(descriptor: int, kind: int) -> bool:
    """Lock a file, or return False if others hold it. Raises `OSError` if it has no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _age_seconds(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime
    return 0.0


def _check_writable(folder: Path) -> None:
    """Raises `OSError` if no file can be made in the folder."""
    probe = folder / f"{secrets.token_hex(8)}{_PART}"
    probe.touch(0o600)
    probe.unlink(missing_ok=True)


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
