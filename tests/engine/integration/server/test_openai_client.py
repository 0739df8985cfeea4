"""The official client against a real engine: every field of its answers, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from atom.config import EngineOptions, build_config
from atom.entrypoints.openai.choices import takes_long
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.http_app import HttpRig, serve_model

MODEL = "tiny"
MESSAGES: list[Any] = [{"role": "user", "content": "hello grüße"}]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpRig]:
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "qwen3")
    options = {"served_model_name": MODEL, "device": "cpu", "num_kv_blocks": 400}
    config = build_config(EngineOptions.of(model=str(folder), **options))  # type: ignore[arg-type]
    async with serve_model(config) as rig:
        yield rig
        await rig.assert_well()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(rig: HttpRig) -> AsyncIterator[AsyncOpenAI]:
    async with rig.openai_client() as client:
        yield client


# ---- log-probabilities --------------------------------------------------------------------------


async def test_a_chats_log_probabilities_spell_its_text(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=24, temperature=0, logprobs=True, top_logprobs=3
    )
    (choice,) = answer.choices
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert answer.usage is not None
    assert len(content) == answer.usage.completion_tokens
    spelled = bytes(byte for token in content for byte in token.bytes or [])
    ended = choice.finish_reason == "stop"  # then the end token is there, but not in the text
    shown = bytes(byte for token in content[: -1 if ended else None] for byte in token.bytes or [])
    assert shown.decode(errors="replace") == choice.message.content
    assert spelled.startswith(shown)
    for token in content:
        assert len(token.top_logprobs) == 3
        values = [top.logprob for top in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert token.logprob == values[0] <= 0  # greedy


async def test_a_streamed_chat_has_the_same_log_probabilities(client: AsyncOpenAI) -> None:
    fields: dict[str, Any] = {"max_tokens": 16, "temperature": 0, "logprobs": True}
    whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES, **fields)
    assert whole.choices[0].logprobs is not None
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, **fields
    )
    found = [
        token.logprob
        async for chunk in stream
        for choice in chunk.choices
        if choice.logprobs is not None
        for token in choice.logprobs.content or []
    ]
    expected = [token.logprob for token in whole.choices[0].logprobs.content or []]
    assert found == pytest.approx(expected, abs=1e-4)


async def test_a_completions_log_probabilities_stand_beside_its_text(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model=MODEL, prompt="hello the", max_tokens=20, temperature=0, logprobs=2
    )
    (choice,) = answer.choices
    columns = choice.logprobs
    assert columns is not None
    assert columns.tokens
    assert columns.token_logprobs
    assert columns.text_offset
    assert columns.top_logprobs
    assert len(columns.tokens) == len(columns.token_logprobs) == len(columns.text_offset)
    for token, offset in zip(columns.tokens, columns.text_offset, strict=True):
        if not token.startswith(("bytes:", "<|")):
            assert choice.text[offset:].startswith(token)
    for token, value, top in zip(
        columns.tokens, columns.token_logprobs, columns.top_logprobs, strict=True
    ):
        assert top[token] == value
        assert len(top) == 2  # greedy: the chosen one is among them


async def test_a_prompt_is_scored_without_generating(client: AsyncOpenAI, rig: HttpRig) -> None:
    """What evaluation programs ask for: the prompt's own log-probabilities."""
    prompt = "hello the world"
    answer = await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=0, echo=True, logprobs=1
    )
    (choice,) = answer.choices
    assert choice.text == prompt
    columns = choice.logprobs
    assert columns is not None
    assert "".join(columns.tokens or []) == prompt
    assert (columns.token_logprobs or [0])[0] is None
    scores = (columns.token_logprobs or [])[1:]
    assert all(value is not None and value <= 0 for value in scores)
    asked = await rig.post("/v1/completions", prompt=prompt, max_tokens=1, prompt_logprobs=0)
    (other,) = asked.json()["choices"]
    entries = other["prompt_logprobs"]
    assert entries[0] is None
    alone = [next(iter(entry.values()))["logprob"] for entry in entries[1:]]
    assert alone == pytest.approx(scores, abs=1e-4)


async def test_an_echo_with_log_probabilities_streams_the_prompt_first(
    client: AsyncOpenAI, rig: HttpRig
) -> None:
    prompt_tokens = (await rig.post("/tokenize", prompt="hello")).json()["count"]
    stream = await client.completions.create(
        model=MODEL, prompt="hello", max_tokens=8, echo=True, logprobs=0, stream=True, temperature=0
    )
    text, tokens, offsets = "", [], []
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.text
            if choice.logprobs is not None:
                tokens += choice.logprobs.tokens or []
                offsets += choice.logprobs.text_offset or []
    assert text.startswith("hello")
    assert offsets == sorted(offsets)
    assert offsets[0] == 0
    assert len(tokens) == prompt_tokens + 8
    assert "".join(tokens[:prompt_tokens]) == "hello"


async def test_a_long_prompts_log_probabilities_stream_as_they_are_answered_whole(
    rig: HttpRig,
) -> None:
    """They are written on a thread, and what comes meanwhile waits for them."""
    length = 505
    assert takes_long(length)
    asked: dict[str, Any] = {
        "prompt": [5 + place % 90 for place in range(length)],
        "prompt_logprobs": 2,
        "max_tokens": 6,
        "temperature": 0,
        "n": 2,
    }
    whole = (await rig.post("/v1/completions", **asked)).json()["choices"]
    lines = (await rig.post("/v1/completions", **asked, stream=True)).text.split("\n\n")
    assert [lines.pop(), lines.pop()] == ["", "data: [DONE]"]
    told: list[Any] = []
    texts = ["", ""]
    for line in lines:
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            told += [choice["prompt_logprobs"]] if choice.get("prompt_logprobs") else []
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole]
    assert len(told[0]) == length
    assert told[0] == whole[0]["prompt_logprobs"]


async def test_nothing_of_a_stop_string_is_told_by_log_probabilities(client: AsyncOpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "prompt": "hello the", "temperature": 0}
    whole = (await client.completions.create(**fields, max_tokens=40)).choices[0].text
    stop = whole[8:12]
    stream = await client.completions.create(
        **fields, max_tokens=40, logprobs=0, stop=stop, stream=True
    )
    text, last_offset = "", -1
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.text
            if choice.logprobs is not None and choice.logprobs.text_offset:
                last_offset = max(choice.logprobs.text_offset)
    assert text == whole[: whole.index(stop)]
    assert last_offset < max(len(text), 1)


# ---- several answers ----------------------------------------------------------------------------


async def test_answers_differ_and_a_seed_brings_each_of_them_back(client: AsyncOpenAI) -> None:
    async def ask(**fields: Any) -> list[str]:
        answer = await client.completions.create(
            model=MODEL, prompt="hello", max_tokens=16, temperature=1.5, **fields
        )
        return [choice.text for choice in answer.choices]

    three = await ask(n=3, seed=40)
    assert len(set(three)) == 3
    assert await ask(n=3, seed=40) == three
    assert await ask(seed=41) == three[1:2]


async def test_streamed_answers_are_the_whole_ones(client: AsyncOpenAI) -> None:
    fields: dict[str, Any] = {"max_tokens": 16, "temperature": 1.0, "seed": 3, "n": 3}
    whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES, **fields)
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
        **fields,
    )
    texts = dict.fromkeys(range(3), "")
    usage = None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert list(texts.values()) == [choice.message.content for choice in whole.choices]
    assert whole.usage is not None
    assert usage is not None
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.completion_tokens == whole.usage.completion_tokens


# ---- fields that change the choice of tokens ----------------------------------------------------


async def test_sampling_fields_have_their_effect(client: AsyncOpenAI, rig: HttpRig) -> None:
    tokens = (await rig.post("/tokenize", prompt="qu")).json()["tokens"]
    forced = await client.completions.create(
        model=MODEL, prompt="hello", max_tokens=5, temperature=0,
        extra_body={"allowed_token_ids": tokens},
    )  # fmt: skip
    assert forced.choices[0].text == "qu" * 5
    biased = await client.completions.create(
        model=MODEL, prompt="hello", max_tokens=5, temperature=0, logit_bias={str(tokens[0]): 100}
    )
    assert biased.choices[0].text == "qu" * 5
    plain = await client.completions.create(
        model=MODEL, prompt="hello", max_tokens=12, temperature=0
    )
    word = plain.choices[0].text[2:5]
    without = await client.completions.create(
        model=MODEL, prompt="hello", max_tokens=12, temperature=0, extra_body={"bad_words": [word]}
    )
    assert without.choices[0].text != plain.choices[0].text


async def test_the_reason_for_the_end_is_told(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model=MODEL, prompt="hello", max_tokens=9, temperature=0, extra_body={"ignore_eos": True}
    )
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.model_extra) == (
        "length",
        {"finish_detail": "max_tokens", "stop_reason": None},
    )
    stopped = await client.completions.create(
        model=MODEL, prompt="hello", max_tokens=9, temperature=0, stop=[choice.text[3:5]]
    )
    assert stopped.choices[0].finish_reason == "stop"
    assert (stopped.choices[0].model_extra or {})["stop_reason"] == choice.text[3:5]


# ---- the prefix cache between tenants -----------------------------------------------------------


async def test_a_prompt_is_found_again_only_under_its_own_salt(client: AsyncOpenAI) -> None:
    async def cached_tokens(salt: str) -> int:
        answer = await client.completions.create(
            model=MODEL, prompt="a secret of one tenant " * 8, max_tokens=1,
            extra_body={"cache_salt": salt},
        )  # fmt: skip
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    assert await cached_tokens("one") == 0
    assert await cached_tokens("one") >= 16
    assert await cached_tokens("other") == 0
    assert await cached_tokens("") == 0
    assert await cached_tokens("one") >= 16
