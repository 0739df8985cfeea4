"""Where the time of an answer went: parts that add up, of whole and streamed answers alike."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atom.speculative_config import SpeculativeConfig
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import HttpRig, serve_app, serve_model
from tests.support.server.seeing_model import write_seeing_model
from tests.support.waiting import eventually

MODEL = Path(__file__).parents[4] / "examples/models/atom-tiny"
MESSAGES = [{"role": "user", "content": "What is ATOM? " * 20}]
NGRAMS = SpeculativeConfig(num_tokens=3, fewest_matched=1, adaptive=False)
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "ATOM is a server. " * 20},
}


@pytest.fixture
async def rig() -> AsyncIterator[HttpRig]:
    config = build_test_config(MODEL, num_kv_blocks=200, speculative=NGRAMS)
    async with serve_model(config) as made:
        yield made


async def _timed(rig: HttpRig, path: str, *, streamed: bool, **fields: Any) -> dict[str, Any]:
    """Return the answer's usage with its timings."""
    asked = {**ASKED[path], "max_tokens": 12, "ignore_eos": True, "temperature": 0, **fields}
    if not streamed:
        answer = await rig.post(path, **asked)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())
    events = await rig.events(path, stream_options={"include_usage": True}, **asked)
    *before, last, done = events
    assert done == "[DONE]"
    assert not any("timings" in event for event in before)
    return dict(last)


async def test_parts_and_counts_belong_to_the_answer(rig: HttpRig) -> None:
    began = asyncio.get_running_loop().time()
    for path, streamed, turn in itertools.product(ASKED, (True, False), range(2)):
        salt = f"{path} {streamed}"
        found = await _timed(rig, path, streamed=streamed, return_timings=True, cache_salt=salt)
        timings, usage = found["timings"], found["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert (timings["cache_n"], timings["predicted_n"]) == (cached, 12)
        assert timings["cache_n"] + timings["prompt_n"] == usage["prompt_tokens"]
        assert (cached > 0) == (turn > 0)
        assert 0 <= timings["draft_n_accepted"] < 12
        assert timings["requests_before"] == 0
        parts = [timings[part] for part in ("queue_ms", "prompt_ms", "predicted_ms")]
        assert min(parts) >= 0
        assert timings["prompt_ms"] > 0
        assert sum(parts) <= 1000 * (asyncio.get_running_loop().time() - began)
        assert "timings" not in await _timed(rig, path, streamed=streamed)
    # An answer of one token over and over has drafts that are accepted.
    repeated = await _timed(rig, path, streamed=True, return_timings=True, allowed_token_ids=[300])
    assert repeated["timings"]["draft_n_accepted"] > 0
    # Several answers are timed as one request.
    found = await _timed(
        rig, "/v1/completions", streamed=False, return_timings=True, n=3, temperature=1, seed=1
    )
    assert found["timings"]["predicted_n"] == found["usage"]["completion_tokens"] == 36
    assert found["timings"]["requests_before"] == 0


async def test_requests_that_were_open_before_are_counted(tmp_path: Path) -> None:
    config = build_test_config(write_model_folder(tmp_path))
    async with serve_app(config, held=True) as rig:
        first = asyncio.create_task(rig.chat("first", max_tokens=2))
        await eventually(lambda: len(rig.core.added) == 1, "the first request came")
        second = asyncio.create_task(rig.chat("second", max_tokens=2, return_timings=True))
        await eventually(lambda: len(rig.core.added) == 2, "the second request came")

        def answered() -> bool:
            rig.core.step()
            return first.done() and second.done()

        await eventually(answered, "both requests are answered")
        body = (await second).json()
        assert body["timings"]["requests_before"] == 1
        assert "timings" not in (await first).json()


async def test_a_models_card_says_whether_it_reads_images(tmp_path: Path) -> None:
    folder = write_seeing_model(tmp_path / "seeing")
    for options, expected in (({}, ["text", "image"]), ({"language_model_only": True}, ["text"])):
        async with serve_app(build_test_config(folder, **options)) as rig:
            (card,) = (await rig.client.get("/v1/models")).json()["data"]
            assert card["input_modalities"] == expected
