"""The documentation site in a real browser: front door, search, dark scheme and phone."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from playwright.async_api import expect

from tests.support.browser import opened

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the built site."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    handler = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


async def test_the_front_page_says_what_this_is_and_asks_nobody_else(site: str) -> None:
    async with opened(site) as found:
        main = found.page.get_by_role("main")
        await expect(main.get_by_role("heading", level=1)).to_contain_text("ATOM platform")
        await expect(main.get_by_role("heading", name="Quick start")).to_be_visible()
        pictures = found.page.get_by_role("article").get_by_role("img")
        assert await pictures.count() >= 1
        for picture in await pictures.all():
            assert await picture.get_attribute("alt")
            assert await picture.evaluate("image => image.decode().then(() => image.naturalWidth)")
        assert all(address.startswith((site, "data:")) for address in found.addresses)
        assert found.faults == []


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("gpuMemoryUtilization", "reference/atomdeployment/"),
        ("wait_for session_id", "guides/load-tests/"),
        ("AtomSlowFirstToken", "runbooks/AtomSlowFirstToken/"),
        ("timed-trace-sec-multiplier", "reference/flags/"),
    ],
)
async def test_its_search_finds_a_name_where_it_is_explained(
    site: str, words: str, page: str
) -> None:
    async with opened(site) as found:
        await found.page.keyboard.press("/")
        await found.page.get_by_role("textbox", name="Search").press_sequentially(words)
        answers = found.page.get_by_role("search").get_by_role("link")
        await expect(answers.first).to_be_visible()
        addresses = [await each.get_attribute("href") for each in await answers.all()]
        assert any(page in str(address) for address in addresses[:10]), addresses
        assert all(address.startswith((site, "data:", "blob:")) for address in found.addresses)


async def test_it_follows_the_readers_colours_until_told_otherwise(site: str) -> None:
    async with opened(site, color_scheme="dark") as found:
        assert await found.brightness() < 80
        await found.page.get_by_title("Switch to light mode").click()
        assert await found.brightness() > 200
    async with opened(site, color_scheme="light") as found:
        assert await found.brightness() > 200


@pytest.mark.parametrize("page", ["", "guides/load-tests/", "reference/flags/", "architecture/"])
async def test_a_phone_reads_it_without_scrolling_sideways(site: str, page: str) -> None:
    async with opened(site + page, viewport={"width": 375, "height": 700}) as found:
        await expect(found.page.get_by_role("main")).to_be_visible()
        assert await found.overflow_pixels() == 0
        assert found.faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_chart_of_a_sweep_is_a_picture_with_a_name(site: str, scheme: str) -> None:
    async with opened(f"{site}pictures/goodput.svg", color_scheme=scheme) as found:
        picture = found.page.get_by_role("img")
        await expect(picture).to_have_accessible_name(
            "tiny, goodput within ttft ≤ 150 ms, tpot ≤ 25 ms"
        )
        drawn = await picture.evaluate("svg => getComputedStyle(svg).backgroundColor")
        assert drawn == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 29)"}[scheme]
        # No text lies on another.
        boxes = await picture.evaluate(
            "svg => [...svg.querySelectorAll('text')].map(t => {const b = t.getBBox();"
            " return [b.x, b.y, b.x + b.width, b.y + b.height]})"
        )
        for one in range(len(boxes)):
            for other in range(one):
                (a, b, c, d), (e, f, g, h) = boxes[one], boxes[other]
                assert c <= e or g <= a or d <= f or h <= b, (boxes[one], boxes[other])
