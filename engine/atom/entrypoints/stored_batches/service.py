"""BatchService: stored files and batches of a folder, with the worker that answers them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from starlette.types import ASGIApp

from atom.entrypoints.request_lines.asgi_call import post
from atom.entrypoints.stored_batches.batch_folder import BatchFolder
from atom.entrypoints.stored_batches.batch_options import BatchOptions
from atom.entrypoints.stored_batches.batch_store import BatchStore
from atom.entrypoints.stored_batches.file_store import FileStore
from atom.entrypoints.stored_batches.worker import BatchWorker, Door
from atom.errors import AtomError


class BatchService:
    def __init__(self, options: BatchOptions, clock: Callable[[], float] = time.time) -> None:
        """Open the folder of the options. clock: Unix seconds. Raises `ConfigError` if the folder
        cannot be used."""
        assert options.folder is not None
        self._folder = BatchFolder(options.folder)
        try:
            self.batches = BatchStore(self._folder, options.most_files, clock)
            self.files = FileStore(self._folder, options, clock)
        except BaseException:
            self._folder.close()
            raise
        self._app: ASGIApp | None = None
        self._is_ready: Callable[[], bool] = lambda: False
        self.worker = BatchWorker(
            self.files, self.batches, Door(self._post, lambda: self._is_ready()), clock
        )

    def serve_through(self, app: ASGIApp, is_ready: Callable[[], bool]) -> None:
        """Name the application that answers requests, with the checks of every request."""
        self._app, self._is_ready = app, is_ready

    async def _post(self, path: str, body: bytes, client: str) -> tuple[int, bytes]:
        assert self._app is not None
        try:
            return await post(self._app, path, body, client)
        except AtomError:
            raise
        except Exception:  # a fault of ours, which the route logged and answered with 500
            return 500, b""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer batches meanwhile. Requests that are under way at the end are asked again at the
        next start."""
        working = asyncio.create_task(self.worker.run())
        try:
            yield
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def refresh(self) -> None:
        """Read the changes of the folder's other servers. Raises `ConfigError`."""
        await self.files.refresh()
        await self.batches.refresh()

    def close(self) -> None:
        """Release the folder."""
        self._folder.close()


def open_batches(options: BatchOptions) -> BatchService | None:
    """Open the batches of a server; None if it keeps none. Raises `ConfigError`."""
    return None if options.folder is None else BatchService(options)


def running_batches(service: BatchService | None) -> AbstractAsyncContextManager[None]:
    """Answer batches meanwhile, if the server keeps some."""
    return contextlib.nullcontext() if service is None else service.running()
