"""/docs in a real browser: it opens on a chat request that one click sends."""

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
