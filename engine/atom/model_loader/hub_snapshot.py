"""A hub model's files in a folder that many pods share: fetched once, proven whole, then marked.

    lock ─▶ complete already? ─▶ ask the hub what belongs to it ─▶ download what is not there ─▶
    compare every file's size and hash ─▶ completion marker, written last and atomically

Who finds the marker may read the folder without asking the hub. One process works on a folder at a
time: a lock of the file system, which the death of its holder releases. Torch-free. Called by
`python -m atom.entrypoints.download`; every fault is a `ModelError` with the remedy.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from atom.checkpoint import HUB_PATTERNS, HUB_SPARED
from atom.errors import ModelError
from atom.model_loader.hub_errors import hub_error

logger = logging.getLogger(__name__)

MARKER = ".atom-complete.json"
_CHUNK_BYTES = 1 << 20
# Small files next to the weights, and what the hub's client keeps beside them.
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a revision. `sha256` of large files, `git_sha1` of those that git holds."""

    name: str
    size_bytes: int
    sha256: str | None
    git_sha1: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Hold what a revision of a model consists of: the files that serving needs."""

    model: str
    revision: str  # as it was asked for
    commit: str
    files: tuple[HubFile, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def ensure_snapshot(
    model: str,
    revision: str | None,
    folder: Path,
    on_plan: Callable[[Snapshot], None] = lambda _: None,
) -> Snapshot:
    """Fetch the whole revision into `folder`; without asking the hub where it is complete already.

    on_plan: told what will be there before anything is fetched. Raises `ModelError`."""
    revision = revision or "main"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        found = read_marker(folder)
        if found is not None and (found.model, found.revision) == (model, revision):
            if not _missing(folder, found):
                logger.info("%s holds %s at %s already", folder, model, found.commit)
                return found
            logger.warning("%s is marked complete and lacks files: fetching these again", folder)
        (folder / MARKER).unlink(missing_ok=True)
        snapshot = look_up(model, revision)
        on_plan(snapshot)
        _remove_leftovers(folder)
        _check_space(folder, snapshot)
        _fetch(folder, snapshot)
        _verify(folder, snapshot)
        _mark(folder, snapshot)
    return snapshot


def _is_needed(name: str) -> bool:
    spared = any(fnmatch(name, pattern) for pattern in HUB_SPARED)
    return not spared and any(fnmatch(name, pattern) for pattern in HUB_PATTERNS)


def look_up(model: str, revision: str) -> Snapshot:
    """Ask the hub what belongs to `revision`. Raises `ModelError`."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    api = HfApi()
    try:
        commit = str(api.model_info(model, revision=revision).sha)
        tree = list(api.list_repo_tree(model, recursive=True, revision=commit))
    except Exception as error:  # the hub client raises many unrelated types
        raise hub_error(model, revision, error) from error
    files = tuple(
        HubFile(
            name=item.path,
            size_bytes=item.size,
            sha256=item.lfs.sha256 if item.lfs else None,
            git_sha1=None if item.lfs else item.blob_id,
        )
        for item in tree
        if isinstance(item, RepoFile) and _is_needed(item.path)
    )
    if not any(file.name.endswith(".safetensors") for file in files):
        raise ModelError(
            f"{model} at {revision} has no safetensors files; choose a repository or revision that "
            "has them"
        )
    return Snapshot(model, revision, commit, files)


def read_marker(folder: Path) -> Snapshot | None:
    """Return what a former run left complete; None where there is no marker that can be read."""
    try:
        stored: dict[str, Any] = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        files = tuple(HubFile(**file) for file in stored["files"])
        return Snapshot(stored["model"], stored["revision"], stored["commit"], files)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def bytes_present(folder: Path) -> int:
    """Bytes of the files below `folder`, half-downloaded ones included."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # renamed while we look
                total += (Path(root) / name).stat().st_size
    return total


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    path = folder.parent / f".{folder.name}.lock"
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            logger.info("another download into %s is under way: waiting for it", folder)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _missing(folder: Path, snapshot: Snapshot) -> list[HubFile]:
    return [file for file in snapshot.files if not _has_size(folder / file.name, file.size_bytes)]


def _has_size(path: Path, size_bytes: int) -> bool:
    try:
        return path.stat().st_size == size_bytes
    except OSError:
        return False


def _remove_leftovers(folder: Path) -> None:
    """Halves of files that a killed process left: the hub's client resumes by whole files (shards),
    because not every file system keeps two writers apart."""
    for path in folder.glob(".cache/huggingface/download/**/*.incomplete"):
        path.unlink(missing_ok=True)


def _check_space(folder: Path, snapshot: Snapshot) -> None:
    wanted = snapshot.total_bytes - bytes_present(folder) + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise ModelError(
            f"{folder}: {snapshot.model} needs {wanted} bytes more and {free} are free; enlarge "
            "the volume claim or remove other models from it"
        )


def _fetch(folder: Path, snapshot: Snapshot) -> None:
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            snapshot.model,
            revision=snapshot.commit,
            local_dir=folder,
            allow_patterns=[file.name for file in snapshot.files],
            max_workers=4,
        )
    except Exception as error:  # the hub client raises many unrelated types
        raise hub_error(snapshot.model, snapshot.revision, error) from error


def _verify(folder: Path, snapshot: Snapshot) -> None:
    """Compare every file with what the hub says of it; a wrong one is removed."""
    for file in snapshot.files:
        path = folder / file.name
        problem = _problem(path, file)
        if problem is not None:
            path.unlink(missing_ok=True)
            raise ModelError(
                f"{path}: {problem}, so it was removed; the next attempt downloads it again. If "
                "that fails too, the hub, a mirror (HF_ENDPOINT) or a proxy delivers a wrong file"
            )


def _problem(path: Path, file: HubFile) -> str | None:
    if not path.is_file():
        return "was not downloaded"
    if not _has_size(path, file.size_bytes):
        return f"has {path.stat().st_size} bytes and not {file.size_bytes}"
    if file.sha256 is not None:
        found, wanted = _digest(path, hashlib.sha256()), file.sha256
    else:
        head = hashlib.sha1(f"blob {file.size_bytes}\0".encode(), usedforsecurity=False)
        found, wanted = _digest(path, head), file.git_sha1 or ""
    return None if found == wanted else f"has the hash {found} and not {wanted}"


def _digest(path: Path, digest: Any) -> str:
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
    return str(digest.hexdigest())


def _mark(folder: Path, snapshot: Snapshot) -> None:
    content = {
        "model": snapshot.model,
        "revision": snapshot.revision,
        "commit": snapshot.commit,
        "files": [
            {
                "name": file.name,
                "size_bytes": file.size_bytes,
                "sha256": file.sha256,
                "git_sha1": file.git_sha1,
            }
            for file in snapshot.files
        ],
    }
    temporary = folder / f"{MARKER}.part"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MARKER)
