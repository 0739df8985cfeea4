"""The page at / as people have it: in a real browser, by what a screen reader would say of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Locator, expect

from atom.entrypoints.http.listener import listen
from atom.entrypoints.swap.models_process import ModelsProcess
from atom.entrypoints.swap.shared_device import Sharing
from atom.entrypoints.swap.swap_policy import SwapRule
from tests.engine.swap.models_yaml import models_in, write_models
from tests.engine.tool_calls.echo import CHAT, TOOLS, echoing
from tests.support.browser import opened
from tests.support.console_page import bound_tokens, console_of, send
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import AppRig, serve_app
from tests.support.server.server_process import server_process
from tests.support.waiting import HANG_SECONDS, eventually

pytestmark = pytest.mark.slow
MODEL = Path(__file__).parents[2] / "examples/models/atom-tiny"
KEY = "sk-of-the-page"
PHONE = {"viewport": {"width": 360, "height": 740}}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AppRig]:
    async with echoing(tmp_path) as rig:
        yield rig


async def test_a_model_answers_and_the_engine_shows_it(tmp_path: Path) -> None:
    with server_process(MODEL, tmp_path / "log") as server:
        server.wait_ready()
        async with opened(f"{server.url}/") as found:
            page = found.page
            await expect(page.get_by_role("status").first).to_have_text("ready")
            log = await send(found, "What is ATOM?")
            await expect(log).to_contain_text("ATOM serves large language models")
            await expect(log).to_contain_text("tokens/s")
            engine = page.get_by_role("complementary", name="Engine and settings")
            # 26 tokens of 65,536 blocks: idle again, and a time to first token of the last minute.
            await expect(engine).to_contain_text("Running0Waiting0")
            await expect(engine).to_contain_text(r"ms")
            speed = engine.get_by_role("img", name="Tokens a second since")
            await expect(speed).to_have_accessible_name(re.compile(r"now .*, at most [1-9]"))
            await expect(engine.get_by_role("img", name="Requests since")).to_be_visible()
            await expect(engine.locator(".chart .axis").first).to_contain_text("ago")
            rows = page.get_by_role("table", name="Sequences that run at once, by their length")
            assert await rows.get_by_role("row").count() > 1
            assert found.faults == []


def metrics_at(reading: int) -> str:
    """Counters of a server with tiers and drafts, as they grow from one reading to the next."""
    values = {
        "kv_cache_blocks_used": 50,
        "kv_cache_blocks_total": 100,
        'kv_offload_usage_ratio{model_name="tiny",tier="host"}': 0.25,
        'kv_offload_usage_ratio{model_name="tiny",tier="disk"}': 0.125,
        "prefix_cache_cached_tokens_total": 80 * reading,
        "prefix_cache_full_tokens_total": 100 * reading,
        "spec_decode_num_draft_tokens_total": 40 * reading,
        "spec_decode_num_accepted_tokens_total": 30 * reading,
    }
    return "".join(f"atom:{name} {value}\n" for name, value in values.items())


async def test_charts_show_tiers_hits_and_drafts_where_the_server_has_them(rig: AppRig) -> None:
    async with console_of(rig) as found:
        page = found.page

        def chart(name: str) -> Locator:
            return page.get_by_role("img", name=f"{name} since")

        await expect(chart("KV cache used")).to_have_accessible_name(re.compile(r"now 0\.0 %, at"))
        await expect(chart("Prefix-cache hits")).to_have_accessible_name(re.compile("now –"))
        await expect(chart("Drafts kept")).to_have_count(0)
        readings = itertools.count()
        await page.route("**/metrics", lambda each: each.fulfill(body=metrics_at(next(readings))))
        await expect(chart("KV cache used")).to_have_accessible_name(
            re.compile("now device 50 %, host 25 %, disk 13 %, at most 50 %")
        )
        await expect(chart("Prefix-cache hits")).to_have_accessible_name(re.compile("now 80 %"))
        await expect(chart("Drafts kept")).to_have_accessible_name(re.compile("now 75 %"))
        lines = page.locator(".chart").filter(has_text="KV cache used").locator("polyline")
        await expect(lines).to_have_count(3)


@contextlib.asynccontextmanager
async def two_models(folder: Path) -> AsyncIterator[str]:
    """A server of two models; yields its address."""
    for name in ("chat", "code"):
        (folder / name).symlink_to(MODEL)
    file = write_models(folder, ("chat", "code"))
    file.write_text(file.read_text().replace("num-kv-blocks: 100", "num-kv-blocks: 300"))
    models = models_in(file)
    listener = listen("127.0.0.1", 0)
    ready = asyncio.Event()
    process = ModelsProcess(
        models, Sharing(0.9, SwapRule(1.0, 0.0)), listener, announce=lambda _: ready.set()
    )
    running = asyncio.create_task(process.run())
    async with asyncio.timeout(HANG_SECONDS):
        await ready.wait()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    process.stop()
    await asyncio.wait_for(running, HANG_SECONDS)


async def test_a_reader_chooses_among_models(tmp_path: Path) -> None:
    async with two_models(tmp_path) as url, opened(f"{url}/") as found:
        page = found.page
        choice = page.get_by_role("combobox", name="Model")
        await expect(choice).to_have_value("chat")
        for name in ("chat", "code"):
            await choice.select_option(name)
            await expect(page.get_by_role("banner")).to_contain_text(name)
            async with page.expect_request(f"{url}{CHAT}") as asked:
                log = await send(found, "What is ATOM?")
            assert json.loads((await asked.value).post_data or "")["model"] == name
            last = log.get_by_role("listitem").last
            await expect(last).to_contain_text("ATOM serves large language models")
            await expect(last).to_contain_text("tokens/s")
        assert not any("server_info" in address for address in found.addresses)
        assert found.faults == []


async def test_a_model_without_chats_says_why(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, context_tokens=256)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    async with serve_app(build_test_config(folder)) as rig, console_of(rig) as found:
        note = found.page.get_by_role("note")
        await expect(note).to_contain_text("tiny has no chat template")
        message = found.page.get_by_role("textbox", name="Message", exact=True)
        await expect(message).to_be_hidden()
        rows = found.page.get_by_role("table", name="Sequences that run at once, by their length")
        await expect(rows).to_contain_text("25")


MARKDOWN = """## Steps
Some **bold** text, `code`, and a [link](https://example.com/) or a [bad](javascript:alert(1)) one.

1. first
2. second

| a | b |
|---|--:|
| 1 | 2 |

```python
print("<b>hi</b>")
```
<img src=x onerror=alert(1)><script>alert(2)</script>
"""


async def test_an_answer_is_read_as_markdown_and_its_markup_is_text(rig: AppRig) -> None:
    async with console_of(rig) as found:
        page = found.page
        await bound_tokens(found, len(MARKDOWN.strip()))
        log = await send(found, MARKDOWN)  # the answer is it, once and a part
        answer = log.get_by_role("listitem").filter(has_text="Model").last
        await expect(answer).to_contain_text("tokens")
        await expect(answer.get_by_role("heading", name="Steps").first).to_be_visible()
        await expect(answer.locator("strong").first).to_have_text("bold")
        await expect(answer.get_by_role("cell", name="2").first).to_be_visible()
        await expect(answer.locator("ol > li").first).to_have_text("first")
        links = await answer.get_by_role("link").all()
        assert {await each.get_attribute("href") for each in links} == {"https://example.com/"}
        await expect(answer.locator("pre code").first).to_have_text('print("<b>hi</b>")\n')
        await expect(answer).to_contain_text("<script>alert(2)</script>")
        assert await answer.locator("script, img, b").count() == 0
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await answer.get_by_role("button", name="Copy").first.click()
        await expect(answer.get_by_role("button", name="Copied")).to_be_visible()
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert copied == 'print("<b>hi</b>")\n'


async def test_settings_go_into_the_request(rig: AppRig) -> None:
    async with console_of(rig) as found:
        page = found.page
        await page.get_by_role("textbox", name="System prompt").fill("be brief")
        await page.get_by_role("spinbutton", name="Temperature").fill("0.5")
        await page.get_by_role("spinbutton", name="Top p").fill("0.9")
        await bound_tokens(found, 4)
        async with page.expect_request(f"{rig.url}{CHAT}") as asked:
            log = await send(found, "hello")
        body = json.loads((await asked.value).post_data or "")
        assert body["messages"][0] == {"role": "system", "content": "be brief"}
        assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.5, 0.9, 4)
        await expect(log).to_contain_text("cut at the most tokens")
        async with page.expect_request(f"{rig.url}{CHAT}") as asked:
            await send(found, "and then?")
        roles = [
            each["role"] for each in json.loads((await asked.value).post_data or "")["messages"]
        ]
        assert roles == ["system", "user", "assistant", "user"]


async def test_an_answer_is_stopped_where_it_is(tmp_path: Path) -> None:
    async with echoing(tmp_path, held=True) as rig:
        async with console_of(rig) as found:
            log = await send(found, "abcdef")
            stop = found.page.get_by_role("button", name="Stop")
            await expect(stop).to_be_visible()
            await eventually(lambda: bool(rig.core.added), "the request came")
            for _ in range(3):
                rig.core.step()
            await expect(log.get_by_role("listitem").last).to_contain_text("abc")
            await found.page.keyboard.press("Escape")
            await expect(log).to_contain_text("stopped")
            await expect(stop).to_be_hidden()
            await eventually(lambda: bool(rig.core.aborted), "the engine is told")


async def test_reasoning_is_folded_and_calls_are_shown_and_answered(rig: AppRig) -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    text = f"<think>\nThe city?\n</think>\n\nI look.\n{call}"
    async with console_of(rig) as found:
        page = found.page
        await page.get_by_role("textbox", name="Tools (JSON list)").fill(json.dumps(TOOLS))
        await bound_tokens(found, len(text))
        log = await send(found, text)
        thought = log.get_by_text("The city?", exact=True)
        await expect(thought).to_be_hidden()
        await log.get_by_text("Reasoning", exact=True).click()
        await expect(thought).to_be_visible()
        region = log.get_by_role("region", name="Call of weather")
        await expect(region).to_contain_text('{"city": "Paris"}')
        async with page.expect_request(f"{rig.url}{CHAT}") as asked:
            await log.get_by_role("textbox", name="Result of weather").fill("21 degrees")
            await log.get_by_role("button", name="Send results").click()
        *_, called, result = json.loads((await asked.value).post_data or "")["messages"]
        assert called["tool_calls"][0]["function"]["name"] == "weather"
        assert called["tool_calls"][0]["id"] == result["tool_call_id"]
        assert result["content"] == "21 degrees"


async def test_a_refusal_is_told_and_the_text_can_be_sent_again(rig: AppRig) -> None:
    async with console_of(rig) as found:
        await found.page.get_by_role("spinbutton", name="Top p").fill("2")
        log = await send(found, "hello")
        await expect(log.get_by_role("alert")).to_contain_text("top_p")
        message = found.page.get_by_role("textbox", name="Message", exact=True)
        await expect(message).to_have_value("hello")
        kept = found.page.get_by_role("list", name="Kept conversations").get_by_role("listitem")
        await expect(kept).to_have_count(0)


async def test_the_key_is_asked_for_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, context_tokens=256)
    (folder / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    async with serve_app(build_test_config(folder), api_key=KEY) as rig:
        async with console_of(rig) as found:
            field = found.page.get_by_label("This server asks for its API key")
            await expect(field).to_be_focused()
            await field.fill("another")
            await field.press("Enter")
            wrong = found.page.get_by_label("This key is not the right one")
            await wrong.fill(KEY)
            await wrong.press("Enter")
            await expect(wrong).to_be_hidden()
            await bound_tokens(found, 5)
            log = await send(found, "hello")
            await expect(log.get_by_role("listitem").last).to_contain_text("hello")


async def test_the_start_is_shown_and_then_the_reason_of_a_death(tmp_path: Path) -> None:
    config = build_test_config(write_model_folder(tmp_path))
    async with serve_app(config, ready_on_start=False) as rig:
        async with console_of(rig) as found:
            page = found.page
            await expect(page.get_by_role("region", name="Start-up")).to_contain_text("Starting:")
            await expect(page.get_by_role("progressbar")).to_be_visible()
            rig.core.become_ready()
            await expect(page.get_by_role("status").first).to_have_text("ready")
            await expect(page.get_by_role("region", name="Start-up")).to_be_hidden()
            rig.core.die("the GPU fell off the bus")
            alert = page.get_by_role("alert")
            await expect(alert).to_contain_text("The engine is dead: the GPU fell off the bus")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_follows_the_readers_colours(rig: AppRig, scheme: str) -> None:
    async with console_of(rig, color_scheme=scheme) as found:
        assert (await found.brightness() < 64) == (scheme == "dark")


async def test_a_phone_has_all_of_it_without_scrolling_sideways(rig: AppRig) -> None:
    async with console_of(rig, **PHONE) as found:
        await found.page.get_by_text("Settings", exact=True).click()
        await bound_tokens(found, 300)
        log = await send(found, "averyverylongwordwithoutaplacetobreakit" * 6)
        await expect(log).to_contain_text("cut at the most tokens")
        for part in ("Engine", "What fits"):
            await found.page.get_by_text(part, exact=True).click()
        assert await found.overflow_pixels() == 0


async def test_every_control_has_a_name(rig: AppRig) -> None:
    async with console_of(rig) as found:
        for role in ("textbox", "spinbutton", "button", "link"):
            controls = found.page.get_by_role(role)  # type: ignore[arg-type]
            for index in range(await controls.count()):
                seen = await controls.nth(index).aria_snapshot()
                assert '"' in seen, f"{role} without a name: {seen}"
        tree = await found.page.locator("body").aria_snapshot()
        for landmark in ("banner", "main", "complementary", "navigation", "log"):
            assert f"- {landmark}" in tree, tree
