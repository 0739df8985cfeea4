"""FileStore: the files of all owners, bounded by bytes and count, each visible to its owner alone.

Descriptions are in memory and on disk (batch_folder.py). Used by the routes and by the worker, in
one event loop; calls that touch the disk are short, and long ones run on threads of their callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from atom.entrypoints.http.errors import shortened
from atom.entrypoints.request_lines.on_thread import on_thread
from atom.entrypoints.stored_batches.batch_folder import BatchFolder
from atom.entrypoints.stored_batches.batch_options import BatchOptions
from atom.entrypoints.stored_batches.records import Purpose, StoredFile, new_file_id
from atom.errors import RequestError

STORAGE_FULL = "storage_full"


@dataclass(slots=True)
class Upload:
    """Contents that arrive. size_bytes: so far."""

    id: str
    path: Path
    size_bytes: int = 0


class FileStore:
    def __init__(
        self, folder: BatchFolder, options: BatchOptions, clock: Callable[[], float]
    ) -> None:
        """clock: Unix seconds."""
        self.folder = folder
        self.options = options
        self._clock = clock
        self._found = {file.id: file for file in folder.files()}
        self._changing = asyncio.Lock()
        self._uploads = 0
        self.used_bytes = folder.size_bytes()

    # ---- bounds -------------------------------------------------------------------------------

    def grow(self, size_bytes: int) -> None:
        """Account for bytes that are written. Raises `RequestError` (507) if they have no room."""
        if self.used_bytes + size_bytes > self.options.storage_bytes:
            raise RequestError(
                f"the files of this server take all of {self.options.storage_bytes // 2**20} MiB "
                "(--batch-storage-mib); delete some with DELETE /v1/files/{file_id}",
                status=507,
                code=STORAGE_FULL,
            )
        self.used_bytes += size_bytes

    def start_upload(self) -> Upload:
        """Raises `RequestError` (507) if there are too many files."""
        if len(self._found) + self._uploads >= self.options.most_files:
            raise RequestError(
                f"this server keeps {self.options.most_files} files (--batch-max-files); delete "
                "some with DELETE /v1/files/{file_id}",
                status=507,
                code=STORAGE_FULL,
            )
        self._uploads += 1
        file_id = new_file_id()
        return Upload(file_id, self.folder.content(file_id))

    def grow_upload(self, upload: Upload, size_bytes: int) -> None:
        """Raises `RequestError`: 413 for a file that is too large, 507 without room."""
        if upload.size_bytes + size_bytes > self.options.file_bytes:
            raise RequestError(
                f"the file is larger than {self.options.file_bytes // 2**20} MiB "
                "(--batch-file-mib); divide it into several",
                status=413,
                param="file",
            )
        self.grow(size_bytes)
        upload.size_bytes += size_bytes

    def end_upload(self, upload: Upload) -> None:
        """End an upload; one that was not kept is dropped."""
        self._uploads -= 1
        if upload.id not in self._found:
            self.folder.remove_file(upload.id)
            self.used_bytes -= upload.size_bytes

    # ---- files --------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read the files that other servers kept or removed. Raises `ConfigError`."""
        async with self._changing:
            found = {file.id: file for file in await on_thread(self.folder.files)}
            if found.keys() != self._found.keys():
                self.used_bytes = await on_thread(self.folder.size_bytes)
            self._found = found

    async def count_anew(self) -> None:
        """Count the bytes that all servers of the folder have written."""
        self.used_bytes = await on_thread(self.folder.size_bytes)

    async def keep(self, file: StoredFile) -> None:
        """Keep contents that are complete; a file that is there already stays as it is. Raises
        `OSError`."""
        async with self._changing:
            if file.id not in self._found:
                await on_thread(lambda: self.folder.write_file(file))
                self._found[file.id] = file

    def now(self) -> int:
        """Return the time in Unix seconds."""
        return int(self._clock())

    async def keep_output(
        self, file_id: str, owner: str, name: str, expires_at: int | None
    ) -> None:
        """Keep the answers of a batch."""
        size = self.folder.content(file_id).stat().st_size
        purpose = Purpose.BATCH_OUTPUT
        await self.keep(StoredFile(file_id, owner, name, purpose, size, self.now(), expires_at))

    def of(self, owner: str) -> list[StoredFile]:
        """List an owner's files, the newest first."""
        files = [file for file in self._found.values() if file.owner == owner and self._is(file)]
        return sorted(files, key=lambda file: (file.created_at, file.id), reverse=True)

    def get(self, file_id: str, owner: str, param: str | None = None) -> StoredFile:
        """Raises `RequestError` (404) for a file that is not there, has expired or is another
        owner's."""
        file = self._found.get(file_id)
        if file is None or file.owner != owner or not self._is(file):
            raise RequestError(
                f"there is no file {shortened(file_id)!r}: it was deleted, has expired or is "
                "another key's; GET /v1/files lists yours",
                status=404,
                param=param,
                code="file_not_found",
            )
        return file

    def has(self, file_id: str) -> bool:
        return file_id in self._found

    def expired(self) -> Iterator[str]:
        """Yield the ids of files whose time is over."""
        yield from [file.id for file in self._found.values() if not self._is(file)]

    async def remove(self, file_id: str) -> None:
        """Remove a file. Raises `RequestError` (409) while a batch needs it."""
        async with self._changing:
            batch_id = await on_thread(lambda: self.folder.remove_unneeded(file_id))
            if batch_id is not None:
                raise RequestError(
                    f"the batch {batch_id} needs the file; cancel it first", status=409
                )
            file = self._found.pop(file_id, None)
            self.used_bytes -= 0 if file is None else file.size_bytes

    def _is(self, file: StoredFile) -> bool:
        return file.expires_at is None or self._clock() < file.expires_at

    def __len__(self) -> int:
        return len(self._found)
