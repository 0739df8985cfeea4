"""Screenshots of the documents, drawn anew: python -m tests.pages.pictures [NAME ...]

The page of a server and the page of the operator in Debian's Chromium (`make browser`), as a reader
sees them: a server with each demo model answers, and an operator reconciles a cluster in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

from aiohttp import web
from playwright.async_api import Page, expect
from prometheus_client import CollectorRegistry

from atom_operator import endpoints
from atom_operator.page.page_reader import PageReader
from atom_operator.page.page_routes import add_page
from atom_operator.settings import OperatorSettings
from tests.support.browser import opened
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import IMAGES, KEY, cluster_with, gpu_node, reconciler
from tests.support.server.server_process import ServerProcess, server_process
from tools.demo_eyes.pictures import Scene, Square, paint

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/pictures"
MODELS = ROOT / "examples/models"
_SEED = 254931245  # of the answers
_SCENE = Scene((Square("red", 1), Square("blue", 4), Square("green", 5)))


@contextlib.contextmanager
def _served(model: str) -> Iterator[ServerProcess]:
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--served-model-name", model)
        with server_process(MODELS / model, Path(folder) / "log", *flags) as server:
            yield server.wait_ready()


def _png(scene: Scene) -> bytes:
    file = io.BytesIO()
    paint(scene, 240, 200, random.Random(3)).save(file, "PNG")
    return file.getvalue()


async def _ask(page: Page, text: str, answers: int) -> None:
    """Send a message, and wait until there are so many whole answers."""
    message = page.get_by_role("textbox", name="Message", exact=True)
    await message.fill(text)
    await message.press("Enter")
    await expect(page.get_by_role("img", name="Time of the answer")).to_have_count(answers)
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()


async def _shot(page: Page, name: str) -> None:
    await page.screenshot(path=FOLDER / f"{name}.png")


async def console() -> None:
    """Draw a chat about a picture, and the charts of the engine."""
    window = {"width": 1280, "height": 900}
    with _served("atom-tiny-eyes") as server:
        async with opened(f"{server.url}/", viewport=window) as found:
            page = found.page
            for name, scene, questions in (
                ("digit.png", Scene(digit=7, colour="blue"), ("Which digit is this?",)),
                ("squares.png", _SCENE, ("What do you see?", "Where is the blue square?")),
            ):
                await page.get_by_role("button", name="New conversation").click()
                file = {"name": name, "mimeType": "image/png", "buffer": _png(scene)}
                await page.locator("#files").set_input_files([file])
                for number, question in enumerate(questions):
                    await _ask(page, question, number + 1)
            await expect(page.locator("#charts svg").first).to_be_visible()
            await _shot(page, "console")


async def two_answers() -> None:
    """Draw two answers of different seeds side by side."""
    window = {"width": 1120, "height": 760}
    with _served("atom-tiny") as server:
        async with opened(f"{server.url}/", viewport=window) as found:
            page = found.page
            for name, value in (("Temperature", "0.9"), ("Max tokens", "60"), ("Seed", str(_SEED))):
                await page.get_by_role("spinbutton", name=name).fill(value)
            await page.get_by_role("combobox", name="Answers").select_option("seed")
            await _ask(page, "What does the operator do?", 2)
            await _shot(page, "two-answers")


@contextlib.asynccontextmanager
async def _operators_page() -> AsyncIterator[str]:
    """Yield the page's address, over a cluster with a model whose rollout is complete."""
    cluster = cluster_with(
        model={"source": "hf://Qwen/Qwen3-8B"}, accelerator={"product": "MI300X"}
    )
    cluster.nodes = [gpu_node("node-a"), gpu_node("node-b", cordoned=True)]
    await reconciler(cluster).reconcile(KEY)
    finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)
    application = endpoints.metrics(CollectorRegistry())
    reader = PageReader(cluster, OperatorSettings(engine_images=IMAGES), time.monotonic)
    add_page(application, reader.document)
    runner = web.AppRunner(application)
    await runner.setup()
    listener = endpoints.listen("127.0.0.1", 0)
    await web.SockSite(runner, listener).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        await runner.cleanup()


async def operator_page() -> None:
    """Draw the operator's page with one AtomDeployment and two nodes."""
    window = {"width": 1280, "height": 720}
    async with _operators_page() as url, opened(url, viewport=window) as found:
        await expect(found.page.get_by_role("article", name="default/chat")).to_be_visible()
        await _shot(found.page, "operator-page")


PICTURES: dict[str, Callable[[], Awaitable[None]]] = {
    "console": console,
    "two-answers": two_answers,
    "operator-page": operator_page,
}


async def _draw(names: list[str]) -> None:
    for name in names:
        await PICTURES[name]()
        print(FOLDER / f"{name}.png")


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the screenshots of the documents anew.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}")
    names = parser.parse_args().names or list(PICTURES)
    unknown = sorted(set(names) - set(PICTURES))
    if unknown:
        parser.error(f"no such picture: {', '.join(unknown)}")
    asyncio.run(_draw(names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
