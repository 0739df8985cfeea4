"""The worker of stored batches ends whenever it is cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from atom.entrypoints.stored_batches.batch_options import BatchOptions
from atom.entrypoints.stored_batches.service import BatchService
from tests.support.waiting import HANG_SECONDS


@pytest.mark.parametrize("turns", range(5))
async def test_a_worker_that_is_cancelled_as_news_come_ends(tmp_path: Path, turns: int) -> None:
    """The cancellation comes this many turns of the loop after the news."""
    service = BatchService(BatchOptions(folder=tmp_path))
    running = asyncio.create_task(service.worker.run())
    for _ in range(3):
        await asyncio.sleep(0)
    service.worker.added()
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=HANG_SECONDS)
    assert done, "the worker goes on"
    service.close()
