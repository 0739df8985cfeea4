"""Debian's Chromium, headless, with a page that notes what it asks of other servers and what fails
in it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import Page, async_playwright, expect

from tests.support.waiting import HANG_SECONDS

expect.set_options(timeout=HANG_SECONDS * 1000)


@dataclass
class Opened:
    """A page. addresses: all that it asked for. faults: errors of its scripts, and what its content
    policy kept it from."""

    page: Page
    addresses: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    async def overflow_pixels(self) -> int:
        """By how much the page is wider than its window."""
        script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(await self.page.evaluate(script))

    async def brightness(self) -> float:
        """Of the background, from 0 for black to 255."""
        script = "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).slice(0, 3)"
        parts = [int(part) for part in await self.page.evaluate(script)]
        return sum(parts) / len(parts)


def chromium() -> str:
    found = shutil.which("chromium")
    assert found, "there is no Chromium here: `make browser` installs it"
    return found


@contextlib.asynccontextmanager
async def opened(url: str, **context: Any) -> AsyncIterator[Opened]:
    """The page at the address. context: playwright's, such as viewport and color_scheme."""
    async with async_playwright() as driver:
        # Tests may run as root, under which Chromium's own sandbox does not start.
        browser = await driver.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        page = await (await browser.new_context(**context)).new_page()
        page.set_default_timeout(HANG_SECONDS * 1000)
        found = Opened(page)
        page.on("request", lambda request: found.addresses.append(request.url))
        page.on("pageerror", lambda error: found.faults.append(str(error)))
        page.on("console", lambda message: _note(found, message))
        await page.goto(url)
        yield found
        await browser.close()


def _note(found: Opened, message: Any) -> None:
    # A status that is not 200 is told here too, and is no fault of the page.
    if message.type == "error" and "the server responded with a status" not in message.text:
        found.faults.append(message.text)
