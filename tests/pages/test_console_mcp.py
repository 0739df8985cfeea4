"""Tools of the reader's MCP servers in the page at /, against a real one (the package `mcp`)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, Page, Request, expect

from tests.engine.tool_calls.echo import CHAT, echoing
from tests.support.browser import Opened
from tests.support.console_page import bound_tokens, console_of, keeps, send
from tests.support.server.http_app import AppRig
from tests.support.server.mcp_server import mcp_server
from tests.support.server.server_process import reserved_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

RESULT = "Rain in Paris"
OFFERED = ["weather", "town_sky"]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AppRig]:
    async with echoing(tmp_path) as rig:
        yield rig


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as port:
        yield port


def call(name: str, **arguments: str) -> str:
    said = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


async def add(page: Page, address: str) -> Locator:
    """Add a server by keyboard, and return the list of servers."""
    field = page.get_by_role("textbox", name="Address (Streamable HTTP)")
    await field.fill(address)
    await field.press("Enter")
    return page.get_by_role("list", name="MCP servers")


async def say(found: Opened, text: str) -> Locator:
    """Let the model say a text, and return the conversation."""
    await bound_tokens(found, len(text))
    return await send(found, text)


def body_of(request: Request) -> dict[str, Any]:
    return dict(json.loads(request.post_data or ""))


@pytest.mark.parametrize("answers", ["json", "sse"])
async def test_a_call_runs_once_it_is_allowed_and_its_result_goes_back(
    rig: AppRig, port: int, answers: str
) -> None:
    with mcp_server(port, answers) as address:
        async with console_of(rig, may_ask=address) as found:
            page = found.page
            servers = await add(page, address)
            await expect(servers).to_contain_text("Town")
            await expect(servers.get_by_text("2 tools")).to_be_visible()
            async with page.expect_request(f"{rig.url}{CHAT}") as asked:
                log = await say(found, call("weather", city="Paris"))
            tools = body_of(await asked.value)["tools"]
            assert [each["function"]["name"] for each in tools] == OFFERED
            assert tools[0]["function"]["description"] == "Tell the weather of a city."
            assert tools[0]["function"]["parameters"]["required"] == ["city"]

            once = log.get_by_role("button", name="Run once")
            await expect(log.get_by_role("textbox", name="Result of weather")).to_have_value("")
            await expect(log).to_contain_text(address)
            await bound_tokens(found, len(RESULT))
            async with page.expect_request(f"{rig.url}{CHAT}") as asked:
                await once.press("Enter")
            *_, called, result = body_of(await asked.value)["messages"]
            assert result["tool_call_id"] == called["tool_calls"][0]["id"]
            assert result["content"] == RESULT
            await expect(log.get_by_role("listitem").last).to_contain_text(RESULT)

            await page.reload()
            await expect(servers.get_by_text("2 tools")).to_be_visible()
            assert found.faults == []


async def test_what_is_allowed_in_a_conversation_runs_in_it_until_that_ends(
    rig: AppRig, port: int
) -> None:
    with mcp_server(port) as address:
        async with console_of(rig, may_ask=address) as found:
            page = found.page
            servers = await add(page, address)
            await expect(servers.get_by_text("2 tools")).to_be_visible()
            log = await say(found, call("weather", city="Paris"))
            await bound_tokens(found, len(RESULT))
            await log.get_by_role("button", name="Allow in this conversation").click()
            await expect(log.get_by_role("listitem").last).to_contain_text(RESULT)

            def has_result(request: Request) -> bool:
                return (
                    request.url.endswith(CHAT)
                    and body_of(request)["messages"][-1]["role"] == "tool"
                )

            async with page.expect_request(has_result) as asked:
                await say(found, call("weather", city="Rome"))
            assert body_of(await asked.value)["messages"][-1]["content"] == "Rain in Rome"
            await expect(page.get_by_role("button", name="Stop")).to_be_hidden()

            await page.get_by_role("button", name="Ask before each call again").click()
            await say(found, call("weather", city="Oslo"))
            await expect(log.get_by_role("button", name="Run once")).to_be_visible()
            text = log.get_by_role("textbox", name="Result of weather")
            await text.fill("Snow, I believe")  # by hand, as a call without a server
            async with page.expect_request(f"{rig.url}{CHAT}") as asked:
                await log.get_by_role("button", name="Send results").click()
            assert body_of(await asked.value)["messages"][-1]["content"] == "Snow, I believe"
            await eventually(lambda: keeps(found, "Snow, I believe"), "it is kept")
            assert not await keeps(found, '"allowed"')


async def test_a_tool_that_fails_tells_the_model_and_a_session_that_is_lost_is_begun_anew(
    rig: AppRig, port: int
) -> None:
    async with console_of(rig, may_ask=f"http://127.0.0.1:{port}") as found:
        page = found.page
        with mcp_server(port) as address:
            servers = await add(page, address)
            await expect(servers.get_by_text("2 tools")).to_be_visible()
            log = await say(found, call("town_sky", city="Paris"))
            async with page.expect_request(f"{rig.url}{CHAT}") as asked:
                await log.get_by_role("button", name="Run once").click()
            assert "is closed" in body_of(await asked.value)["messages"][-1]["content"]
        await say(found, call("weather", city="Paris"))
        once = log.get_by_role("button", name="Run once")
        await once.click()
        await expect(log.get_by_role("alert")).to_contain_text("cannot be reached")
        found.faults.clear()  # Chromium tells of a server that is away
        with mcp_server(port):
            async with page.expect_request(f"{rig.url}{CHAT}") as asked:
                await once.click()
            assert body_of(await asked.value)["messages"][-1]["content"] == RESULT


async def test_servers_that_cannot_be_used_say_why(rig: AppRig, port: int) -> None:
    async with console_of(rig, may_ask=f"http://127.0.0.1:{port}") as found:
        page = found.page
        servers = page.get_by_role("list", name="MCP servers")
        alert = servers.get_by_role("alert")
        faults = {
            f"http://127.0.0.1:{port}/mcp": "cannot be reached: it may not be running",
            "https://tools.example.com/mcp": "with --page-mcp-hosts https://tools.example.com",
            f"{rig.url}/v1/models": "There is no MCP server at",
            f"{rig.url}/tokenize": "answers 400",
        }
        for address, fault in faults.items():
            await add(page, address)
            await expect(alert).to_contain_text(fault)
            await servers.get_by_role("button", name=f"Remove {address}").click()
        with mcp_server(port, pages="closed") as address:
            await add(page, address)
            await expect(alert).to_contain_text("its CORS rules must allow this origin")
        with mcp_server(port):
            await servers.get_by_role("button", name="Try again").click()
            await expect(servers.get_by_text("2 tools")).to_be_visible()
        await servers.get_by_role("button", name=f"Remove {address}").click()
        with mcp_server(port, pages="signed"):
            await add(page, address)
            await expect(alert).to_contain_text("wants a sign-in at https://sign-in.example.com")
            async with page.expect_popup():
                await servers.get_by_role("button", name="Sign in").click()
            await expect(alert).to_contain_text("with --page-mcp-hosts https://sign-in.example.com")
        await add(page, "localhost:9/mcp")
        await expect(page.locator("#mcp-note")).to_contain_text("is no address of a server")
        found.faults.clear()  # Chromium tells of each of these


async def test_a_reader_signs_in_and_the_token_is_renewed_until_that_ends(
    rig: AppRig, port: int
) -> None:
    with mcp_server(port, pages="entered") as address:
        origin = f"http://127.0.0.1:{port}"
        async with console_of(rig, may_ask=origin) as found:
            page = found.page
            servers = await add(page, address)
            enter = servers.get_by_role("button", name="Sign in")
            alert = servers.get_by_role("alert")
            await expect(alert).to_contain_text(f"{origin} wants a sign-in at {origin}.")

            async with page.expect_popup() as opened:
                await enter.click()
            await (await opened.value).get_by_role("link", name="deny").click()
            await expect(alert).to_contain_text(f"{origin} lets nobody in: access_denied")
            async with page.expect_popup() as opened:
                await enter.click()
            window = await opened.value
            async with window.expect_event("close"):
                await window.get_by_role("link", name="allow").click()
            await expect(servers.get_by_text("2 tools")).to_be_visible()
            assert "code=" not in page.url

            await page.request.post(f"{origin}/expire")
            log = await say(found, call("weather", city="Paris"))
            await bound_tokens(found, len(RESULT))
            async with page.expect_request(f"{rig.url}{CHAT}") as asked:
                await log.get_by_role("button", name="Run once").click()
            assert body_of(await asked.value)["messages"][-1]["content"] == RESULT
            await expect(page.get_by_role("button", name="Stop")).to_be_hidden()

            await page.reload()  # the tokens are the tab's
            await expect(servers.get_by_text("2 tools")).to_be_visible()
            kept = await page.evaluate("JSON.stringify(localStorage)")
            assert "access" not in kept
            await page.request.post(f"{origin}/expire?all=1")
            await page.reload()
            await expect(alert).to_contain_text(f"wants a sign-in at {origin}.")
            await expect(enter).to_be_visible()
