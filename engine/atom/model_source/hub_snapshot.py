"""HubSource: list, download and verify the files of a revision on the Hugging Face hub.

snapshot_folder.py manages the target folder; the hub's own client resumes by whole files. Every
file is compared with the hub's size and hash. Torch-free.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from atom.errors import ModelError
from atom.model_source.hub_errors import hub_error
from atom.model_source.snapshot_folder import Snapshot, SourceFile, has_size, is_needed

_CHUNK_BYTES = 1 << 20


class HubSource:
    """The hub that HF_ENDPOINT names, or huggingface.co."""

    def look_up(self, model: str, revision: str) -> Snapshot:
        """List the files of `revision` on the hub. Raises `ModelError`."""
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        api = HfApi()
        try:
            commit = str(api.model_info(model, revision=revision).sha)
            tree = list(api.list_repo_tree(model, recursive=True, revision=commit))
        except Exception as error:  # the hub client raises many unrelated types
            raise hub_error(model, revision, error) from error
        files = tuple(
            SourceFile(
                name=item.path,
                size_bytes=item.size,
                sha256=item.lfs.sha256 if item.lfs else None,
                git_sha1=None if item.lfs else item.blob_id,
            )
            for item in tree
            if isinstance(item, RepoFile) and is_needed(item.path)
        )
        if not any(file.name.endswith(".safetensors") for file in files):
            raise ModelError(
                f"{model} at {revision} has no safetensors files; choose a repository or "
                "revision that has them"
            )
        return Snapshot(model, revision, commit, files)

    def fetch(self, folder: Path, snapshot: Snapshot) -> None:
        """Download and compare. Raises `ModelError`."""
        _download(folder, snapshot)
        _verify(folder, snapshot)


def _download(folder: Path, snapshot: Snapshot) -> None:
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
    """Compare every file with the hub's size and hash; remove a wrong one and raise
    `ModelError`."""
    for file in snapshot.files:
        path = folder / file.name
        problem = _problem(path, file)
        if problem is not None:
            path.unlink(missing_ok=True)
            raise ModelError(
                f"{path}: {problem}, so it was removed; the next attempt downloads it again. If "
                "that fails too, the hub, a mirror (HF_ENDPOINT) or a proxy delivers a wrong file"
            )


def _problem(path: Path, file: SourceFile) -> str | None:
    if not path.is_file():
        return "was not downloaded"
    if not has_size(path, file.size_bytes):
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
