"""A model's files in a folder that many pods share: downloaded once, verified, then marked.

    lock ─▶ complete already? ─▶ list the source's files ─▶ download the missing files ─▶
    verify every file ─▶ completion marker, written last and atomically

A process that finds the marker reads the folder without a request to the source (the hub, or an S3
bucket). One process works on a folder at a time, under a lock of the file system that is released
if its holder dies. Torch-free. Called by `python -m atom.entrypoints.download` and, for buckets, by
the engine itself; every fault is a `ModelError` with the remedy.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Protocol, TextIO

from atom.errors import ModelError

logger = logging.getLogger(__name__)

MARKER = ".atom-complete.json"
# What serving needs of a model's files; never code, never other weight formats.
WEIGHTS_PATTERN = "*.safetensors"
TEXT_PATTERNS = ["*.json", "*.jinja", "*.model", "*.txt"]
NEEDED_PATTERNS = [WEIGHTS_PATTERN, *TEXT_PATTERNS]
# The checkpoint's weights once more, under Mistral's own names.
MISTRAL_WEIGHTS = "consolidated*.safetensors"
# Small files next to the weights, and a client's own files.
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The known facts of one file of a revision: `sha256` for the hub's large files, `git_sha1` for
    files in git, `etag` for a bucket's objects."""

    name: str
    size_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a model's revision that serving needs."""

    model: str
    revision: str  # as it was asked for
    commit: str
    files: tuple[SourceFile, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class ModelSource(Protocol):
    """A source that lists and downloads a model's files. All methods raise `ModelError`."""

    def look_up(self, model: str, revision: str) -> Snapshot:
        """List the files of a model's revision."""
        ...

    def fetch(self, folder: Path, snapshot: Snapshot) -> None:
        """Download the snapshot's files that the folder does not have yet, and verify every
        file."""
        ...


class WithoutWeights:
    """A source of all but the weights, for a server whose workers hold these."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source

    def look_up(self, model: str, revision: str) -> Snapshot:
        found = self._source.look_up(model, revision)
        files = tuple(file for file in found.files if not fnmatch(file.name, WEIGHTS_PATTERN))
        return replace(found, files=files)

    def fetch(self, folder: Path, snapshot: Snapshot) -> None:
        self._source.fetch(folder, snapshot)


def ensure_snapshot(
    source: ModelSource,
    model: str,
    revision: str | None,
    folder: Path,
    on_plan: Callable[[Snapshot], None] = lambda _: None,
) -> Snapshot:
    """Download the whole revision into `folder`, without a request to its source if it is complete
    already.

    on_plan: called with the files' list before any download. Raises `ModelError`.
    """
    revision = revision or "main"
    folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder):
        found = read_marker(folder)
        if found is not None and (found.model, found.revision) == (model, revision):
            if not _missing(folder, found):
                logger.info("%s holds %s at %s already", folder, model, found.commit)
                return found
            logger.warning("%s is marked complete and lacks files: fetching these again", folder)
        (folder / MARKER).unlink(missing_ok=True)
        snapshot = source.look_up(model, revision)
        on_plan(snapshot)
        _remove_leftovers(folder)
        _check_space(folder, snapshot)
        source.fetch(folder, snapshot)
        _mark(folder, snapshot)
    return snapshot


def is_needed(name: str) -> bool:
    """Return whether serving needs a file: never code, never other formats of the weights."""
    needed = any(fnmatch(name, pattern) for pattern in NEEDED_PATTERNS)
    return needed and not fnmatch(name, MISTRAL_WEIGHTS)


def read_marker(folder: Path) -> Snapshot | None:
    """Read the snapshot that an earlier run completed; None if there is no readable marker."""
    try:
        stored: dict[str, Any] = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        files = tuple(SourceFile(**file) for file in stored["files"])
        return Snapshot(stored["model"], stored["revision"], stored["commit"], files)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def bytes_present(folder: Path) -> int:
    """Return the bytes of the files below `folder`, incomplete downloads included."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # renamed while we look
                total += (Path(root) / name).stat().st_size
    return total


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, which only the holder may change; wait for another holder."""
    with _lock_file(folder).open("a") as file:
        if not _took(file):
            logger.info("another download into %s is under way: waiting for it", folder)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def tried_lock(folder: Path) -> Iterator[bool]:
    """Lock a folder; yield False if another process holds the lock."""
    with _lock_file(folder).open("a") as file:
        yield _took(file)


def _took(file: TextIO) -> bool:
    """Take the lock if no other process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_file(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.lock"


def bytes_lacking(folder: Path, snapshot: Snapshot) -> int:
    """Return the free bytes that the missing files of a snapshot need."""
    return snapshot.total_bytes - bytes_present(folder) + _SPARE_BYTES


def _missing(folder: Path, snapshot: Snapshot) -> list[SourceFile]:
    return [file for file in snapshot.files if not has_size(folder / file.name, file.size_bytes)]


def has_size(path: Path, size_bytes: int) -> bool:
    """Return whether a file exists and has so many bytes."""
    try:
        return path.stat().st_size == size_bytes
    except OSError:
        return False


def _remove_leftovers(folder: Path) -> None:
    """Remove incomplete files of a killed process: clients resume by whole files (shards), because
    not every file system keeps two writers apart."""
    for path in folder.glob(".cache/**/*.incomplete"):
        path.unlink(missing_ok=True)


def _check_space(folder: Path, snapshot: Snapshot) -> None:
    wanted = bytes_lacking(folder, snapshot)
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise ModelError(
            f"{folder}: {snapshot.model} needs {wanted} bytes more and {free} are free; enlarge "
            "the volume claim or remove other models from it"
        )


def _mark(folder: Path, snapshot: Snapshot) -> None:
    content = asdict(snapshot)
    temporary = folder / f"{MARKER}.part"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MARKER)
