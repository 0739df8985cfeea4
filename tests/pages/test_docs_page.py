"""/docs and /redoc in a real browser: one click sends a chat request, and nobody else is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.engine.tool_calls.echo import CHAT, echoing
from tests.support.browser import opened

pytestmark = pytest.mark.slow


async def test_the_first_request_works_as_it_is_shown(tmp_path: Path) -> None:
    async with echoing(tmp_path) as rig:
        async with opened(f"{rig.url}/docs") as found:
            await expect(found.page.get_by_role("textbox").first).to_contain_text("What is ATOM?")
            async with found.page.expect_response(f"{rig.url}{CHAT}") as answered:
                await found.page.get_by_role("button", name="Execute").click()
            assert (await answered.value).status == 200
            assert all(address.startswith(rig.url) for address in found.addresses)
            assert found.faults == []


async def test_redoc_shows_the_reference_and_asks_nobody_else(tmp_path: Path) -> None:
    async with echoing(tmp_path) as rig:
        async with opened(f"{rig.url}/redoc") as found:
            await expect(found.page.get_by_role("heading", level=1).first).to_contain_text("ATOM")
            await expect(found.page.get_by_text(CHAT).first).to_be_attached()
            # Its script wants a logo from its makers' server; the policy keeps the browser from it.
            foreign = [
                address
                for address in found.addresses
                if not address.startswith((rig.url, "data:", "blob:"))
            ]
            refused = [text for text in found.faults if "Content Security Policy" in text]
            assert found.faults == refused
            assert all(any(address in text for text in refused) for address in foreign)
