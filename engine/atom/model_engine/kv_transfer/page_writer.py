"""PageWriter: writes the pages that arrive to the KV cache, beside the steps if the device can.

On a device whose copies run beside steps a thread writes, and the core hears of it by an event;
elsewhere pages are written in the call. Blocks of pages that are being written may not be freed:
`settle` waits for them. Used by AwaitedPages, on the engine core's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from atom.model_engine.kv_transfer.channel_events import PageCame, PagesWritten
from atom.model_engine.page_access import DevicePage, PageAccess

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PageWrite:
    """A page, and the block of a group that it fills."""

    group: int
    block: int
    page: PageCame


class PageWriter:
    """Write pages. tell: takes events from any thread."""

    def __init__(self, access: PageAccess, tell: Callable[[PagesWritten], None]) -> None:
        self._access = access
        self._tell = tell
        self._thread: ThreadPoolExecutor | None = None
        if access.copies_beside_steps:
            self._thread = ThreadPoolExecutor(1, "kv-page-writer")
        self._writing: list[Future[PagesWritten]] = []

    def write(self, writes: Sequence[PageWrite]) -> PagesWritten | None:
        """Write pages; returns the news, or None if it follows as an event."""
        after = self._access.submitted_steps()
        if self._thread is None:
            return self._write(writes, after)
        future = self._thread.submit(self._write, writes, after)
        future.add_done_callback(lambda done: self._tell(done.result()))
        self._writing = [each for each in self._writing if not each.done()] + [future]
        return None

    def settle(self) -> None:
        """Wait until no page is being written."""
        for future in self._writing:
            future.result()
        self._writing.clear()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def _write(self, writes: Sequence[PageWrite], after: object | None) -> PagesWritten:
        """Write the pages of each group together."""
        news = PagesWritten([], [])
        for group in sorted({each.group for each in writes}):
            own = [each for each in writes if each.group == group]
            try:
                whole = self._write_group(group, own, after)
            except Exception:
                logger.exception("kv transfer: pages could not be written")
                news.failed.extend(each.page for each in own)
                continue
            for each, is_whole in zip(own, whole, strict=True):
                (news.written if is_whole else news.damaged).append(each.page)
        return news

    def _write_group(
        self, group: int, writes: Sequence[PageWrite], after: object | None
    ) -> list[bool]:
        """Write pages of one group; returns which of them are whole."""
        pages = [each.page.payload for each in writes]
        held = {at: page for at, page in enumerate(pages) if isinstance(page, DevicePage)}
        hosted = {at: page for at, page in enumerate(pages) if not isinstance(page, DevicePage)}
        whole = [True] * len(pages)
        if hosted:
            blocks = [writes[at].block for at in hosted]
            self._access.write(group, blocks, list(hosted.values()), after)
        if held:
            assert self._access.device_memory is not None, "pages come by what was agreed"
            blocks = [writes[at].block for at in held]
            found = self._access.device_memory.write(group, blocks, list(held.values()), after)
            for at, is_whole in zip(held, found, strict=True):
                whole[at] = is_whole
        return whole
