"""Conversations in the page at /, by what a person does with them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, expect

from tests.engine.tool_calls.echo import CHAT, echoing
from tests.support.browser import Opened
from tests.support.console_page import bound_tokens, console_of, keeps, send
from tests.support.server.http_app import AppRig
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

FORMULAS = r"""It costs $5 and $6. The sum $\sum_{i=1}^n i$ is \(n(n+1)/2\).

$$
\frac{a}{b}
$$

$\href{https://example.com/}{click}$ and $\broken{$

```python
def f(x):
    return "<img src=x onerror=alert(1)>"  # 1
```
"""


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AppRig]:
    async with echoing(tmp_path) as rig:
        yield rig


def turns(log: Locator) -> Locator:
    return log.get_by_role("listitem").filter(has=log.page.get_by_role("heading", level=2))


async def asked(found: Opened, rig: AppRig, text: str) -> Locator:
    """Send a message, and wait for the end of the answer, which repeats it."""
    log = await send(found, text)
    await expect(turns(log).last).to_contain_text("first after")
    return log


async def requested(found: Opened, rig: AppRig, act: Any) -> list[dict[str, Any]]:
    """Return the messages of the request that an act sends."""
    async with found.page.expect_request(f"{rig.url}{CHAT}") as sent:
        await act()
    messages: list[dict[str, Any]] = json.loads((await sent.value).post_data or "")["messages"]
    return messages


async def test_a_message_is_edited_and_both_versions_stay(rig: AppRig) -> None:
    async with console_of(rig) as found:
        page = found.page
        await bound_tokens(found, 5)
        await asked(found, rig, "alpha")
        log = await asked(found, rig, "second")
        await turns(log).first.get_by_role("button", name="Edit").click()
        field = log.get_by_role("textbox", name="Edited message")
        await expect(field).to_be_focused()
        await expect(field).to_have_value("alpha")
        await field.fill("gamma")
        messages = await requested(found, rig, lambda: field.press("Enter"))
        assert [each["content"] for each in messages] == ["gamma"]
        await expect(turns(log)).to_have_count(2)
        await expect(turns(log).first).to_contain_text("2 of 2")
        await expect(turns(log).last).to_contain_text("gamma")
        await turns(log).first.get_by_role("button", name="Previous version").click()
        await expect(turns(log)).to_have_count(4)
        await expect(turns(log).first).to_contain_text("alpha")
        await page.reload()
        await expect(turns(log)).to_have_count(4)
        await turns(log).first.get_by_role("button", name="Next version").click()
        await expect(turns(log)).to_have_count(2)
        await turns(log).first.get_by_role("button", name="Edit").click()
        await log.get_by_role("button", name="Cancel").click()
        await expect(turns(log).first).to_contain_text("gamma")


async def test_a_question_is_answered_again_and_both_answers_stay(rig: AppRig) -> None:
    async with console_of(rig) as found:
        await bound_tokens(found, 5)
        log = await asked(found, rig, "alpha")
        await bound_tokens(found, 2)
        again = turns(log).last.get_by_role("button", name="Answer again")
        messages = await requested(found, rig, again.click)
        assert [each["content"] for each in messages] == ["alpha"]
        await expect(turns(log).last).to_contain_text("2 of 2")
        await expect(turns(log).last.locator(".text")).to_have_text("al")
        await turns(log).last.get_by_role("button", name="Previous answer").click()
        await expect(turns(log).last.locator(".text")).to_have_text("alpha")
        messages = await requested(found, rig, lambda: send(found, "next"))
        assert [each["content"] for each in messages] == ["alpha", "alpha", "next"]


async def test_an_answer_survives_a_reload_as_far_as_it_came(tmp_path: Path) -> None:
    async with echoing(tmp_path, held=True) as rig, console_of(rig) as found:
        log = await send(found, "abcdef")
        await eventually(lambda: bool(rig.core.added), "the request came")
        for _ in range(3):
            rig.core.step()
        await expect(turns(log).last).to_contain_text("abc")
        await eventually(lambda: keeps(found, '"text":"abc"'), "the answer is kept")
        await found.page.reload()
        await expect(turns(log).last).to_contain_text("abc")
        await expect(turns(log).last).to_contain_text("cut by a reload of the page")
        await eventually(lambda: bool(rig.core.aborted), "the engine is told")
        await expect(turns(log).last.get_by_role("button", name="Answer again")).to_be_enabled()


async def test_conversations_are_found_opened_deleted_and_carried_over(
    rig: AppRig, tmp_path: Path
) -> None:
    async with console_of(rig) as found:
        page = found.page
        await bound_tokens(found, 8)
        kept = page.get_by_role("list", name="Kept conversations").get_by_role("listitem")
        for text in ("apples and pears", "bridges"):
            await page.get_by_role("button", name="New conversation").click()
            log = await asked(found, rig, text)
        await expect(kept).to_have_count(2)
        search = page.get_by_role("searchbox", name="Search conversations")
        await search.fill("PEARS")
        await expect(kept).to_have_count(1)
        await kept.get_by_role("button", name="apples and pears").first.click()
        await expect(turns(log).first).to_contain_text("apples and pears")
        await search.fill("nowhere")
        await expect(page.get_by_text("No conversation has these words")).to_be_visible()
        await search.fill("")
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Export").click()
        file = tmp_path / "exported.json"
        await (await download.value).save_as(file)
        await _import(found, file)  # nothing twice
        await expect(page.locator("#history").get_by_role("status")).to_contain_text("2 conv")
        await expect(kept).to_have_count(2)
        for name in ("bridges", "apples and pears"):
            await page.get_by_role("button", name=f"Delete {name}").click()
        await expect(kept).to_have_count(0)
        await expect(turns(log)).to_have_count(0)
        await _import(found, file)
        await expect(kept).to_have_count(2)
        await page.reload()
        await expect(kept).to_have_count(2)
        await kept.get_by_role("button", name="bridges").first.click()
        await expect(turns(log).first).to_contain_text("bridges")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda _: "{", "the file is no JSON"),
        (lambda _: "[]", "the file holds no conversations"),
        (lambda text: text.replace('"user"', '"system"'), "conversation 1 of the file is damaged"),
        (lambda text: text.replace('"parent": ""', '"parent": "9"'), "is damaged"),
        (
            lambda text: text.replace(
                '"files": []', '"files": [{"kind": "image", "name": "x", "url": "http://x/"}]'
            ),
            "is damaged",
        ),
    ],
)
async def test_a_damaged_file_is_not_imported(
    rig: AppRig, tmp_path: Path, damage: Any, said: str
) -> None:
    turn = {"id": "1", "parent": "", "role": "user", "text": "hello", "files": []}
    one = {"id": "a", "title": "hello", "turns": {"1": turn}, "chosen": {"": "1"}}
    text = json.dumps({"kind": "atom-conversations", "conversations": [one]})
    file = tmp_path / "some.json"
    file.write_text(damage(text))
    assert file.read_text() != text
    async with console_of(rig) as found:
        page = found.page
        await _import(found, file)
        history = page.locator("#history")
        await expect(history.get_by_role("status")).to_contain_text(f"some.json: {said}"[:10])
        await expect(history.get_by_role("status")).to_contain_text(said)
        kept = page.get_by_role("list", name="Kept conversations").get_by_role("listitem")
        await expect(kept).to_have_count(0)


async def test_an_import_takes_nothing_away_and_believes_no_figure(
    rig: AppRig, tmp_path: Path
) -> None:
    user = {"id": "1", "parent": "", "role": "user", "text": "hello", "files": []}
    odd = {"usage": {"prompt_tokens": "<b>"}, "timings": {"queue_ms": {}}, "times": 7, "calls": []}
    answer = {"id": "2", "parent": "1", "role": "assistant", "text": "so it is", **odd}
    one = {
        "id": "a",
        "title": "mine",
        "turns": {"1": user, "2": answer},
        "chosen": {"": "1", "1": "2"},
    }
    file = tmp_path / "some.json"
    async with console_of(rig) as found:
        page = found.page
        kept = page.get_by_role("list", name="Kept conversations").get_by_role("listitem")
        for title, count in (("mine", 1), ("mine", 1), ("another of that name", 2)):
            told = {"kind": "atom-conversations", "conversations": [{**one, "title": title}]}
            file.write_text(json.dumps(told))
            await _import(found, file)
            await expect(page.locator("#history").get_by_role("status")).to_contain_text("1 conv")
            await expect(kept).to_have_count(count)
        await kept.get_by_role("button", name="mine").first.click()
        log = page.get_by_role("log", name="Conversation")
        await expect(turns(log).last).to_contain_text("so it is")
        await expect(turns(log).last.get_by_role("button", name="Answer again")).to_be_visible()


async def test_marks_of_formulas_without_an_end_cost_no_time(rig: AppRig) -> None:
    async with console_of(rig) as found:
        script = """async () => {
            const { render } = await import("/console/markdown.js");
            const place = document.createElement("div");
            const begun = performance.now();
            for (const text of ["\\\\(", "$a ", "$$\\n", "\\\\[\\n"]) {
                render(text.repeat(20000), place);
            }
            return [place.textContent.length, performance.now() - begun];
        }"""
        length, _ = await found.page.evaluate(script)  # a search to the end for each takes minutes
        assert length > 10_000


async def _import(found: Opened, file: Path) -> None:
    async with found.page.expect_file_chooser() as chooser:
        await found.page.get_by_role("button", name="Import").click()
    await (await chooser.value).set_files(file)


async def test_formulas_and_code_are_drawn_and_are_no_markup(rig: AppRig) -> None:
    async with console_of(rig) as found:
        await bound_tokens(found, len(FORMULAS.strip()))
        log = await asked(found, rig, FORMULAS)
        answer = turns(log).last
        await expect(answer.locator("math")).to_have_count(4)  # the sum, its value, a/b, the text
        await expect(answer.locator(".formula math[display=block] mfrac")).to_have_count(1)
        await expect(answer).to_contain_text("It costs $5 and $6.")
        await expect(answer.locator("pre .hl-keyword").first).to_have_text("def")
        await expect(answer.locator("pre .hl-string")).to_contain_text("<img src=x")
        assert await answer.locator("img, script, a").count() == 0
        assert await answer.locator("math").first.evaluate("each => each.clientWidth") > 0


async def test_an_answer_is_explained_by_its_largest_part(tmp_path: Path) -> None:
    async with echoing(tmp_path, held=True) as rig, console_of(rig) as found:
        await bound_tokens(found, 1)  # so that no time goes into further ones
        log = await send(found, "abcdef")
        await eventually(lambda: bool(rig.core.added), "the request came")
        rig.core.release()
        answer = turns(log).last
        bar = answer.get_by_role("img", name="Time of the answer: waiting")
        await expect(bar).to_be_visible()
        sentence = answer.locator(".explain summary")
        await expect(sentence).to_contain_text("6 tokens were computed and 0 cached")
        await sentence.click()
        parts = answer.locator(".legend").get_by_role("listitem")
        await expect(parts).to_have_count(3)
        await expect(parts.first).to_contain_text("waiting 0 ms")
        await found.page.reload()
        await expect(turns(log).last.locator(".explain")).to_contain_text("the prompt")


async def test_settings_survive_a_reload_and_give_way_to_the_models(rig: AppRig) -> None:
    async with console_of(rig) as found:
        page = found.page
        await bound_tokens(found, 3)
        await page.get_by_role("spinbutton", name="Seed").fill("7")
        await page.reload()
        async with page.expect_request(f"{rig.url}{CHAT}") as sent:
            await send(found, "hello")
        body = json.loads((await sent.value).post_data or "")
        assert (body["max_tokens"], body["seed"]) == (3, 7)
        await page.get_by_role("button", name="Use the model's defaults").click()
        await page.reload()
        async with page.expect_request(f"{rig.url}{CHAT}") as sent:
            await send(found, "hello")
        assert "seed" not in json.loads((await sent.value).post_data or "")


async def test_all_of_it_is_reached_by_keyboard(rig: AppRig) -> None:
    """Tab from the message goes through the buttons; nothing keeps the focus."""
    async with console_of(rig) as found:
        page = found.page
        await bound_tokens(found, 5)
        await asked(found, rig, "alpha")
        await page.locator("body").click(position={"x": 2, "y": 2})
        reached: set[str] = set()
        for _ in range(60):
            await page.keyboard.press("Tab")
            name = await page.evaluate(
                "(document.activeElement.ariaLabel || document.activeElement.textContent).trim()"
            )
            reached.add(name)
        for name in ("Edit", "Answer again", "Copy text", "Attach", "New conversation", "Import"):
            assert name in reached, reached
