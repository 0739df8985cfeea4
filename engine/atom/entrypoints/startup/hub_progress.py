"""Progress of the server's own download of a model, measured on the disk meanwhile.

The download itself reports no progress that /health could show, and is the longest part of a first
start: a pod that progresses must be told from one that is stuck. Only reports; the download
explains faults of the hub. Called by OwnEngine while it opens the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from atom.checkpoint import is_hub_id
from atom.entrypoints.process.stop_requests import on_daemon_thread
from atom.entrypoints.startup.startup_timeline import DOWNLOADING_WEIGHTS
from atom.errors import ModelError
from atom.model_source.choose_source import model_source
from atom.model_source.s3_snapshot import SCHEME, downloaded_folder
from atom.model_source.snapshot_folder import Snapshot, bytes_present

logger = logging.getLogger(__name__)
_PERIOD_SECONDS = 1.0


async def follow_download(
    model: str,
    revision: str | None,
    note: Callable[[str, float], None],
    expect: Callable[[int], None],
) -> None:
    """Follow a model's download until cancelled. note: called with the share done, while something
    is missing; expect: with the expected bytes."""
    is_bucket = model.startswith(SCHEME)
    if not is_bucket and not is_hub_id(model):
        return
    try:
        snapshot = await on_daemon_thread(
            lambda: model_source(model).look_up(model, revision or "main"), name="ask-the-source"
        )
    except (ModelError, ImportError) as error:
        logger.debug("no progress of the download is known: %s", error)
        return
    folder = downloaded_folder(model) if is_bucket else _blobs(model)
    while True:
        present = bytes_present(folder) if is_bucket else bytes_in_cache(folder, snapshot)
        if present < snapshot.total_bytes:
            expect(snapshot.total_bytes)
            note(DOWNLOADING_WEIGHTS, present / snapshot.total_bytes)
        await asyncio.sleep(_PERIOD_SECONDS)


def bytes_in_cache(blobs: Path, snapshot: Snapshot) -> int:
    """Return the bytes of the snapshot's files in the hub client's cache, half-downloaded ones
    included."""
    present = 0
    for file in snapshot.files:
        # The client names a blob by its hash, and an incomplete one `HASH.PART.incomplete`.
        sizes = [0]
        for path in blobs.glob(f"{file.sha256 or file.git_sha1}*"):
            with contextlib.suppress(OSError):  # renamed while we look
                sizes.append(path.stat().st_size)
        present += min(max(sizes), file.size_bytes)
    return present


def _blobs(model: str) -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    return Path(HF_HUB_CACHE) / repo_folder_name(repo_id=model, repo_type="model") / "blobs"
