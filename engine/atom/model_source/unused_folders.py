"""Remove from a claim the model folders that its namespace no longer uses.

    <root>/<model>/<revision>/          a download's folder, and beside it
    <root>/<model>/.<revision>.lock     its lock

Only folders that a download has marked (`.atom-download.json`) are removed, interrupted downloads
included, and only those that a single owner has used. The owner is the claim, by its uid: downloads
through another claim of the same volume leave another mark. The list of used folders has a time. A
folder stays if a download has used it since then or holds its lock; all folders stay if the list is
too old. Called by `python -m atom.entrypoints.download`; the operator makes the list.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from atom.model_source.snapshot_folder import bytes_present, locked_folder, tried_lock

logger = logging.getLogger(__name__)

MARK = ".atom-download.json"
_GOING = ".atom-removed-"  # the name of a folder that is being removed
# Clocks of nodes differ, and a download that begins is not at once seen.
_MARGIN_SECONDS = 600.0
_OLDEST_LIST_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class KeptList:
    """The folders of a claim that are in use: paths below `root`, as of a time in seconds since
    1970."""

    root: Path
    owner: str
    kept: tuple[str, ...]
    as_of: float


@dataclass(frozen=True, slots=True)
class Removed:
    """A removed folder, relative to the claim's root, and its size."""

    folder: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Unused:
    path: Path
    used_at: float
    size_bytes: int

    def as_removed(self, root: Path) -> Removed:
        return Removed(str(self.path.relative_to(root)), self.size_bytes)


def note_use(folder: Path, owner: str) -> None:
    """Mark the folder as made by downloads and used by `owner` now."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder):
        owners = {**_owners(folder), owner: time.time()}
        temporary = folder / f"{MARK}.part"
        temporary.write_text(json.dumps({"owners": owners}), encoding="utf-8")
        temporary.replace(folder / MARK)


def remove_unused(
    listed: KeptList, own: Path, wanted_bytes: int | None = None
) -> tuple[Removed, ...]:
    """Remove unused folders except `own`. With `wanted_bytes`, remove the least recently used ones
    until that many bytes are free, or none if removing all of them would not free enough."""
    if time.time() - listed.as_of > _OLDEST_LIST_SECONDS:
        logger.warning("the list of what is used is too old, so nothing is removed from the claim")
        return ()
    removed: list[Removed] = []
    try:
        for left in _half_removed(listed.root):
            shutil.rmtree(left, ignore_errors=True)
        unused = sorted(_unused(listed, own), key=lambda each: each.used_at)
        if wanted_bytes is not None:
            unused = _enough(unused, wanted_bytes - shutil.disk_usage(listed.root).free)
        for each in unused:
            removed += [each.as_removed(listed.root)] if _remove(each, listed) else []
    except OSError as error:  # such as a file system that is read-only
        logger.warning("unused models stay on the claim: %s", error)
    return tuple(removed)


def _enough(unused: Sequence[_Unused], lacking_bytes: int) -> list[_Unused]:
    chosen: list[_Unused] = []
    for each in unused:
        if sum(one.size_bytes for one in chosen) >= lacking_bytes:
            break
        chosen.append(each)
    found = sum(one.size_bytes for one in chosen)
    if found < lacking_bytes:
        logger.warning(
            "unused models on the claim take %d bytes, and %d are lacking: they stay",
            found,
            lacking_bytes,
        )
        return []
    return chosen


def _unused(listed: KeptList, own: Path) -> Iterator[_Unused]:
    for path in _revisions(listed.root):
        name = path.relative_to(listed.root)
        used_at = _used_at(path, listed)
        if path == own or _is_kept(PurePosixPath(name), listed.kept) or used_at is None:
            continue
        yield _Unused(path, used_at, bytes_present(path))


def _revisions(root: Path) -> Iterator[Path]:
    for model in sorted(root.iterdir()):
        if model.is_symlink() or not model.is_dir() or model.name.startswith("."):
            continue
        for path in sorted(model.iterdir()):
            if not path.is_symlink() and path.is_dir() and not path.name.startswith("."):
                yield path


def _half_removed(root: Path) -> Iterator[Path]:
    """Yield the folders whose removal was interrupted."""
    for path in root.glob(f"*/{_GOING}*"):
        if not path.is_symlink() and path.is_dir():
            yield path


def _is_kept(name: PurePosixPath, kept: Sequence[str]) -> bool:
    """Return whether the folder, something in it or something that it is in is used."""
    for text in kept:
        used = PurePosixPath(text)
        if used == PurePosixPath(".") or used.is_relative_to(name) or name.is_relative_to(used):
            return True
    return False


def _used_at(folder: Path, listed: KeptList) -> float | None:
    """Return the time of the folder's last use; None if the claim is not its only user, or if a
    download used it since shortly before the list was made."""
    owners = _owners(folder)
    if set(owners) != {listed.owner}:
        if owners:
            logger.info("%s stays: another claim's download has used it too", folder)
        return None
    used_at = owners[listed.owner]
    if used_at > listed.as_of - _MARGIN_SECONDS:
        logger.info("%s stays: a download used it a moment ago", folder)
        return None
    return used_at


def _owners(folder: Path) -> dict[str, float]:
    try:
        stored = json.loads((folder / MARK).read_text(encoding="utf-8"))["owners"]
        return {str(owner): float(at) for owner, at in stored.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _remove(unused: _Unused, listed: KeptList) -> bool:
    """Take the folder out of sight at once, under its lock, and then away file by file; False where
    it turns out to be used."""
    folder = unused.path
    with tried_lock(folder) as is_held:
        if not is_held:
            logger.info("%s stays: a download into it is under way", folder)
            return False
        if _used_at(folder, listed) is None:
            return False
        going = folder.with_name(f"{_GOING}{folder.name}-{os.getpid()}-{time.time_ns()}")
        folder.rename(going)
    shutil.rmtree(going)
    logger.info("removed %s: %d bytes that no AtomDeployment uses", folder, unused.size_bytes)
    return True
