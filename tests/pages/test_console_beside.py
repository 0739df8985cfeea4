"""Two answers side by side in the page at /, by what a person does with them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Locator, Request, expect

from atom.model_engine.request import AnswerMove
from tests.engine.tool_calls.echo import CHAT, echoing
from tests.support.browser import Opened
from tests.support.console_page import bound_tokens, console_of, keeps, send
from tests.support.server.http_app import AppRig
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AppRig]:
    async with echoing(tmp_path) as rig:
        yield rig


async def ask_twice(found: Opened, text: str) -> Locator:
    """Ask for two answers of different seeds, by keyboard, and return their columns."""
    second = found.page.get_by_role("combobox", name="Answers")
    await second.focus()
    await second.press("ArrowDown")
    await expect(second).to_have_value("seed")
    await bound_tokens(found, 5)
    log = await send(found, text)
    columns = log.get_by_role("region", name="Answer of seed")
    await expect(columns).to_have_count(2)
    return columns


async def test_two_answers_are_asked_at_once_and_kept_as_branches(rig: AppRig) -> None:
    async with console_of(rig) as found:
        page = found.page
        asked: list[Request] = []
        page.on("request", lambda each: asked.append(each) if each.url.endswith(CHAT) else None)
        columns = await ask_twice(found, "alpha")
        for index in range(2):
            column = columns.nth(index)
            await expect(column).to_contain_text("alpha")
            await expect(column).to_contain_text("5 tokens")
            await expect(column).to_contain_text("first after")
            await expect(column.get_by_role("img", name="Time of the answer")).to_be_visible()
        first, second = (json.loads(each.post_data or "") for each in asked)
        assert second["seed"] == (first["seed"] + 1) % 2**31
        assert first["messages"] == second["messages"]
        left, right = [await columns.nth(index).bounding_box() for index in range(2)]
        assert left is not None
        assert right is not None
        assert left["y"] == right["y"]
        assert left["x"] + left["width"] <= right["x"]
        follow = columns.first.get_by_role("button", name="Continue with seed")
        await follow.press("Enter")
        turn = page.get_by_role("log").get_by_role("listitem").filter(has_text="1 of 2")
        await expect(turn).to_have_count(1)
        chosen = '"chosen":{"1":"2","":"1"}'  # JavaScript puts keys that are numbers first
        await eventually(lambda: keeps(found, chosen), "the choice is kept")
        await page.reload()
        await expect(turn).to_have_count(1)
        await turn.get_by_role("button", name="Next answer").click()
        await expect(page.get_by_role("log")).to_contain_text("2 of 2")


async def test_two_answers_are_stacked_on_a_phone_in_the_dark(rig: AppRig) -> None:
    phone = {"viewport": {"width": 380, "height": 740}, "color_scheme": "dark"}
    async with console_of(rig, **phone) as found:
        await found.page.locator("#settings > summary").click()
        columns = await ask_twice(found, "beta")
        await expect(columns.last).to_contain_text("first after")
        above, below = [await columns.nth(index).bounding_box() for index in range(2)]
        assert above is not None
        assert below is not None
        assert above["y"] + above["height"] <= below["y"]
        assert above["x"] + above["width"] <= 380


async def test_both_answers_stop_at_once(rig: AppRig) -> None:
    rig.core.held = True
    async with console_of(rig) as found:
        columns = await ask_twice(found, "gamma")
        await found.page.keyboard.press("Escape")
        for index in range(2):
            await expect(columns.nth(index)).to_contain_text("stopped")
        await eventually(lambda: rig.engine.open_requests == 0, "the server ends both")
        rig.core.release()


async def test_the_margin_names_the_pod_that_ended_and_the_one_that_went_on(rig: AppRig) -> None:
    """The answer of a conversation that was kept, as of one that comes."""
    async with console_of(rig) as found:
        rig.core.held = True
        await bound_tokens(found, 5)
        log = await send(found, "delta")
        await eventually(lambda: rig.engine.open_requests == 1, "it is asked")
        (number,) = rig.engine._requests.by_number
        rig.engine._requests.note_moved(number, AnswerMove("chat-0", "chat-1", 3))
        rig.core.release()
        note = log.get_by_role("note")
        await expect(note).to_have_text("chat-0 ended after 3 tokens; chat-1 went on.")
        await eventually(lambda: keeps(found, '"went_on":"chat-1"'), "the move is kept")
        await found.page.reload()
        await expect(note).to_have_text("chat-0 ended after 3 tokens; chat-1 went on.")
