"""Pictures and texts in the page at /, by what a person does: choose, drop, paste, send, look."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from tests.engine.tool_calls.echo import CHAT, echoing
from tests.support.browser import Opened
from tests.support.console_page import bound_tokens, console_of, hand_over, send
from tests.support.engine_core.front_half import build_test_config
from tests.support.pictures import file_of
from tests.support.server.http_app import AppRig, serve_app
from tests.support.server.seeing_model import data_url, picture, write_seeing_model

pytestmark = pytest.mark.slow
RED, BLUE = picture(3, 2), picture(2, 1, "blue")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AppRig]:
    folder = write_seeing_model(tmp_path / "seeing")
    async with serve_app(build_test_config(folder)) as made:
        yield made


async def choose(found: Opened, *files: tuple[str, str, bytes]) -> None:
    """Choose files by the button. files: name, media type and content of each."""
    async with found.page.expect_file_chooser() as chooser:
        await found.page.get_by_role("button", name="Attach").click()
    given: Any = [{"name": name, "mimeType": kind, "buffer": data} for name, kind, data in files]
    await (await chooser.value).set_files(given)


async def test_pictures_are_attached_counted_sent_and_kept(rig: AppRig) -> None:
    async with console_of(rig) as found:
        page = found.page
        attached = page.get_by_role("list", name="Attached files").get_by_role("listitem")
        await choose(found, ("red.png", "image/png", RED))
        # Six tokens, a break and an end: what the picture adds to a prompt.
        await expect(attached).to_contain_text("red.png 8 tokens")
        await hand_over(page, "drop", "blue.png", BLUE, "image/png")
        await expect(attached.last).to_contain_text("blue.png 3 tokens")
        await hand_over(page, "paste", "again.png", BLUE, "image/png")
        await expect(attached).to_have_count(3)
        await page.get_by_role("button", name="Remove again.png").click()
        await expect(attached).to_have_count(2)
        await expect(page.get_by_role("img", name="red.png")).to_be_visible()
        await bound_tokens(found, 4)
        async with page.expect_request(f"{rig.url}{CHAT}") as asked:
            log = await send(found, "What is this?")
        (message,) = json.loads((await asked.value).post_data or "")["messages"]
        assert message["content"] == [
            {"type": "image_url", "image_url": {"url": data_url(RED)}},
            {"type": "image_url", "image_url": {"url": data_url(BLUE)}},
            {"type": "text", "text": "What is this?"},
        ]
        await expect(attached).to_have_count(0)
        await expect(log).to_contain_text("(8 of pictures)")  # 3 · 2 and 2 · 1 tokens
        await expect(log.get_by_role("img", name="blue.png")).to_be_visible()
        assert [image.num_tokens for image in rig.core.added[-1].images] == [6, 2]
        await page.reload()
        await expect(log.get_by_role("img", name="red.png")).to_be_visible()
        async with page.expect_request(f"{rig.url}{CHAT}") as asked:
            await send(found, "And now?")
        first, *_ = json.loads((await asked.value).post_data or "")["messages"]
        assert first == message


async def test_a_picture_alone_is_a_message(rig: AppRig) -> None:
    async with console_of(rig) as found:
        await bound_tokens(found, 4)
        await choose(found, ("red.png", "image/png", RED))
        async with found.page.expect_request(f"{rig.url}{CHAT}") as asked:
            await send(found, "")
        (message,) = json.loads((await asked.value).post_data or "")["messages"]
        assert [part["type"] for part in message["content"]] == ["image_url"]


@pytest.mark.parametrize("kind", ["drop", "paste", "button"])
async def test_a_text_models_page_says_why_it_takes_no_picture(tmp_path: Path, kind: str) -> None:
    async with echoing(tmp_path) as rig, console_of(rig) as found:
        page = found.page
        await expect(page.get_by_role("status").first).to_have_text("ready")
        if kind == "button":
            await choose(found, ("red.png", "image/png", RED))
        else:
            await hand_over(page, kind, "red.png", RED, "image/png")
        note = page.get_by_role("form", name="New message").get_by_role("alert")
        await expect(note).to_contain_text("red.png: tiny reads text alone and sees no pictures")
        await expect(page.get_by_role("list", name="Attached files")).to_be_hidden()


async def test_a_picture_that_comes_while_the_server_starts_is_asked_for_later(
    tmp_path: Path,
) -> None:
    folder = write_seeing_model(tmp_path / "seeing")
    async with serve_app(build_test_config(folder), ready_on_start=False) as rig:
        async with console_of(rig) as found:
            page = found.page
            await expect(page.get_by_role("region", name="Start-up")).to_be_visible()
            await choose(found, ("red.png", "image/png", RED))
            note = page.get_by_role("form", name="New message").get_by_role("alert")
            await expect(note).to_contain_text("has not told its model yet")
            rig.core.become_ready()
            await expect(page.get_by_role("status").first).to_have_text("ready")
            await expect(page.get_by_role("banner")).to_contain_text("tiny")
            await choose(found, ("red.png", "image/png", RED))
            attached = page.get_by_role("list", name="Attached files").get_by_role("listitem")
            await expect(attached).to_have_count(1)


async def test_a_file_that_cannot_be_read_is_told_by_its_name(rig: AppRig) -> None:
    async with console_of(rig) as found:
        page = found.page
        note = page.get_by_role("form", name="New message").get_by_role("alert")
        attached = page.get_by_role("list", name="Attached files").get_by_role("listitem")
        for name, media, content, said in (
            ("broken.png", "image/png", RED[:40], "broken.png: "),
            ("odd.heic", "image/heic", b"\0\0\0\x18ftypheic", "this browser cannot read"),
            ("program", "application/octet-stream", b"\x7fELF\0\0", "neither a picture nor a text"),
        ):
            await choose(found, (name, media, content))
            await expect(note).to_contain_text(said)
            await expect(attached).to_have_count(0)
        await choose(found, ("red.png", "image/png", RED))
        await expect(attached).to_have_count(1)
        await expect(note).to_be_hidden()


async def test_pictures_of_other_kinds_are_sent_as_one_that_the_server_reads(rig: AppRig) -> None:
    from PIL import Image

    async with console_of(rig) as found:
        drawn = file_of(Image.new("RGB", (56, 28), "green"), "BMP")
        await bound_tokens(found, 4)
        await choose(found, ("old.bmp", "image/bmp", drawn))
        attached = found.page.get_by_role("list", name="Attached files").get_by_role("listitem")
        await expect(attached).to_contain_text("3 tokens")
        async with found.page.expect_request(f"{rig.url}{CHAT}") as asked:
            await send(found, "green?")
        (message,) = json.loads((await asked.value).post_data or "")["messages"]
        assert message["content"][0]["image_url"]["url"].startswith("data:image/jpeg;base64,")


async def test_texts_go_with_the_message_under_their_names(tmp_path: Path) -> None:
    async with echoing(tmp_path) as rig, console_of(rig) as found:
        await bound_tokens(found, 5)
        await choose(found, ("notes.md", "text/markdown", "# Größe\nzwölf".encode()))
        attached = found.page.get_by_role("list", name="Attached files").get_by_role("listitem")
        await expect(attached).to_contain_text("tokens")
        async with found.page.expect_request(f"{rig.url}{CHAT}") as asked:
            log = await send(found, "Shorter, please")
        (message,) = json.loads((await asked.value).post_data or "")["messages"]
        assert message["content"] == "notes.md:\n```\n# Größe\nzwölf\n```\n\nShorter, please"
        await expect(log.get_by_role("listitem").first).to_contain_text("notes.md")


async def test_a_phone_shows_large_pictures_without_scrolling_sideways(rig: AppRig) -> None:
    async with console_of(rig, viewport={"width": 360, "height": 740}) as found:
        await found.page.get_by_text("Settings", exact=True).click()
        await bound_tokens(found, 4)
        await choose(found, ("a-long-name-of-a-picture" * 4 + ".png", "image/png", picture(40, 3)))
        assert await found.overflow_pixels() == 0
        log = await send(found, "wide?")
        await expect(log).to_contain_text("of pictures")
        assert await found.overflow_pixels() == 0
