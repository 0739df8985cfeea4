"""The committed model with eyes: right about pictures that it never saw, through the real server
and in the page at /, from a dropped file to a streamed word."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
from openai import OpenAI
from PIL import Image
from playwright.async_api import expect

from tests.support.browser import opened
from tests.support.console_page import hand_over, send
from tests.support.server.server_process import SERVED_NAME, ServerProcess, server_process
from tools.demo.steps import content_of
from tools.demo_eyes.pictures import Scene, Square, as_data_url, draw_scene, paint
from tools.demo_eyes.questions import NO_PICTURE, Asked, Subject, ask, describe
from tools.demo_eyes.train import main
from tools.demo_model.checkpoint import file_facts
from tools.on_cluster import DEMO_MODELS

CHECKPOINT = Path(__file__).parents[3] / "examples" / "models" / "atom-tiny-eyes"
SEED = 20_261_130  # of pictures that training and its exam never draw
PICTURES = 120
SCENE = Scene((Square("red", 0), Square("blue", 4), Square("green", 5)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with server_process(CHECKPOINT, log, "--max-num-seqs", "16") as server:
        yield server.wait_ready()


def drawn(number: int) -> tuple[str, Asked]:
    """Draw a picture as a data URL, with a question and its answer."""
    random = Random(f"{SEED} {number}")
    scene = draw_scene(random)
    subjects = list(Subject) if scene.digit is None else [Subject.WHOLE, Subject.DIGIT]
    width, height = random.randint(70, 500), random.randint(70, 500)
    height = min(max(height, width * 3 // 5), width * 5 // 3)
    kind = random.choice(("PNG", "JPEG", "WEBP"))
    written = io.BytesIO()
    paint(scene, width, height, random).save(written, kind, quality=92)
    encoded = base64.b64encode(written.getvalue()).decode()
    asked = ask(random.choice(subjects), scene, random)
    return f"data:image/{kind.lower()};base64,{encoded}", asked


def said(client: OpenAI, content: Any) -> str:
    answer = client.chat.completions.create(
        model=SERVED_NAME, messages=[{"role": "user", "content": content}], max_tokens=120
    )
    assert answer.choices[0].finish_reason == "stop", content
    return answer.choices[0].message.content or ""


def test_unseen_pictures_of_any_size_and_kind_are_answered_rightly(server: ServerProcess) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        def wrong(number: int) -> str:
            url, asked = drawn(number)
            image = {"type": "image_url", "image_url": {"url": url}}
            found = said(client, [image, {"type": "text", "text": asked.question}])
            return "" if found == asked.answer else f"{number} {asked} → {found}"

        with ThreadPoolExecutor(8) as pool:
            mistakes = [each for each in pool.map(wrong, range(PICTURES)) if each]
        assert len(mistakes) <= PICTURES // 20, mistakes  # 95 %
        assert said(client, "What do you see?") == NO_PICTURE
        assert said(client, content_of(DEMO_MODELS["atom-tiny-eyes"])) == describe(SCENE)


@pytest.mark.slow
async def test_a_picture_dropped_in_the_page_is_named_in_a_streamed_answer(
    server: ServerProcess,
) -> None:
    file = base64.b64decode(as_data_url(SCENE).partition(",")[2])
    async with opened(f"{server.url}/") as found:
        page = found.page
        await expect(page.get_by_role("status").first).to_have_text("ready")
        await hand_over(page, "drop", "squares.png", file, "image/png")
        attached = page.get_by_role("list", name="Attached files")
        await expect(attached).to_contain_text("tokens")
        log = await send(found, "What do you see?")
        await expect(log).to_contain_text(describe(SCENE))
        await expect(log).to_contain_text("16 of pictures")
        log = await send(found, "Where is the blue square?")
        await expect(log).to_contain_text("The blue square is in the middle.")
        assert found.faults == []


def test_the_exam_is_passed_and_the_files_are_small(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(CHECKPOINT), "--device", "cpu", "--exam", "100"]) == 0
    assert capsys.readouterr().out.count("right (100.0%)") == 2  # in float32 and in bfloat16
    weights = {fact.name: fact for fact in file_facts(CHECKPOINT)}["model.safetensors"]
    assert weights.size_bytes < 3_000_000
    assert weights.sha256 in (CHECKPOINT / "README.md").read_text(), "the card names other weights"


def test_pictures_of_the_test_are_not_all_alike() -> None:
    sizes = set()
    for number in range(20):
        url, _ = drawn(number)
        sizes.add(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).size)
    assert len(sizes) > 15
