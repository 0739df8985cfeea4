"""The page at / in a browser, as a reader uses it."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator

from playwright.async_api import Locator, Page

from tests.support.browser import Opened, opened
from tests.support.server.http_app import HttpRig

# A file that comes from outside, as the browser hands it to the page.
_HAND_OVER = """([kind, name, type, encoded]) => {
    const bytes = Uint8Array.from(atob(encoded), (each) => each.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], name, {type}));
    const options = {bubbles: true, cancelable: true};
    if (kind === "paste") {
        const event = new ClipboardEvent("paste", {...options, clipboardData: data});
        return document.getElementById("message").dispatchEvent(event);
    }
    const place = document.getElementById("chat");
    place.dispatchEvent(new DragEvent("dragover", {...options, dataTransfer: data}));
    return place.dispatchEvent(new DragEvent("drop", {...options, dataTransfer: data}));
}"""


@contextlib.asynccontextmanager
async def console_of(
    rig: HttpRig, *, may_ask: str | None = None, **context: object
) -> AsyncIterator[Opened]:
    """The page, which at the end has asked no other server and broken none of its rules. may_ask:
    address of an MCP server that it was told of."""
    async with opened(f"{rig.url}/", **context) as found:
        yield found
        own = (rig.url, "data:", f"blob:{rig.url}", *([] if may_ask is None else [may_ask]))
        assert all(address.startswith(own) for address in found.addresses), found.addresses
        assert found.faults == []


async def send(found: Opened, text: str) -> Locator:
    """Sends by keyboard, and returns the conversation."""
    message = found.page.get_by_role("textbox", name="Message", exact=True)
    await message.fill(text)
    await message.press("Enter")
    return found.page.get_by_role("log", name="Conversation")


async def bound_tokens(found: Opened, tokens: int) -> None:
    await found.page.get_by_role("spinbutton", name="Max tokens").fill(str(tokens))


async def hand_over(page: Page, kind: str, name: str, file: bytes, media: str) -> None:
    """Drop or paste a file."""
    encoded = base64.b64encode(file).decode()
    taken = not await page.evaluate(_HAND_OVER, [kind, name, media, encoded])
    assert taken, "the page leaves the file to the browser"


async def keeps(found: Opened, text: str) -> bool:
    """Return whether the browser's database has the text."""
    script = """text => new Promise((resolve) => {
        const request = indexedDB.open("atom", 1);
        request.onsuccess = () => {
            const all = request.result.transaction("conversations").objectStore("conversations").getAll();
            all.onsuccess = () => { request.result.close(); resolve(JSON.stringify(all.result).includes(text)); };
        };
    })"""  # noqa: E501
    return bool(await found.page.evaluate(script, text))
