"""The HTTP API over a real socket; the engine's process is replaced by one that echoes prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from atom.config import Config
from atom.entrypoints.startup.startup_timeline import StartupTimeline
from tests.support.engine_core.front_half import SERVED_NAME, build_test_config, write_model_folder
from tests.support.models.byte_tokenizer import END_OF_TEXT
from tests.support.server.http_app import AppRig, serve_app
from tests.support.waiting import eventually

CONTEXT = 64


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("model")
    generation = {
        "temperature": 0.25, "top_k": 20, "top_p": 0.5, "min_p": 0.125, "repetition_penalty": 1.5
    }  # fmt: skip
    return build_test_config(write_model_folder(folder, context_tokens=CONTEXT, **generation))


@pytest.fixture
async def rig(config: Config) -> AsyncIterator[AppRig]:
    async with serve_app(config, cached_tokens=2) as rig:
        yield rig


@pytest.fixture
async def client(rig: AppRig) -> AsyncIterator[AsyncOpenAI]:
    async with rig.openai_client() as client:
        yield client


def chat_prompt(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


# ---- answers ------------------------------------------------------------------------------------


async def test_a_completion_is_answered_whole(rig: AppRig) -> None:
    response = await rig.post("/v1/completions", model=SERVED_NAME, prompt="abcd", max_tokens=6)
    assert response.status_code == 200
    body = response.json()
    assert body["object"] == "text_completion"
    assert body["model"] == SERVED_NAME
    assert body["choices"] == [
        {
            "index": 0,
            "text": "abcdab",
            "finish_reason": "length",
            "finish_detail": "max_tokens",
            "stop_reason": None,
            "logprobs": None,
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 6,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


async def test_a_completion_has_sixteen_tokens_unless_asked_otherwise(rig: AppRig) -> None:
    response = await rig.post("/v1/completions", prompt="abcd")
    assert response.json()["usage"]["completion_tokens"] == 16


async def test_a_chat_is_answered_up_to_the_context_by_default(rig: AppRig) -> None:
    response = await rig.chat("abcd")
    body = response.json()
    assert body["object"] == "chat.completion"
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == CONTEXT
    expected = rig.engine.processor.inputs.tokenize(chat_prompt("abcd"), add_special_tokens=False)
    assert rig.core.added[0].prompt_token_ids == expected


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_chat_is_as_long_as_asked(rig: AppRig, name: str) -> None:
    response = await rig.chat("abcd", **{name: 3})
    assert response.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["aba"]),
        (["ab", "cd"], ["aba", "cdc"]),
        ([64, 65], None),
        ([[64, 65], [66]], None),
    ],
)
async def test_prompts_may_be_texts_or_token_ids_one_or_many(
    rig: AppRig, prompt: Any, texts: list[str] | None
) -> None:
    response = await rig.post("/v1/completions", prompt=prompt, max_tokens=3)
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(rig.core.added)))
    if texts is None:
        decode = rig.engine.processor.tokenizer.decode  # type: ignore[union-attr]
        ids = [request.prompt_token_ids for request in rig.core.added]
        assert ids == (prompt if isinstance(prompt[0], list) else [prompt])
        texts = [decode((item * 3)[:3]) for item in ids]
    assert [choice["text"] for choice in choices] == texts


async def test_a_message_may_come_in_text_parts(rig: AppRig) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    await rig.post("/v1/chat/completions", messages=messages, max_tokens=1)
    text = rig.engine.processor.tokenizer.decode(  # type: ignore[union-attr]
        rig.core.added[0].prompt_token_ids
    )
    assert text == "system\nBe brief.\nuser\none\ntwo\nassistant\n"


async def test_stop_may_be_a_string_or_a_list(rig: AppRig) -> None:
    for stop in ("c", ["x", "c"]):
        response = await rig.post("/v1/completions", prompt="abcd", stop=stop)
        (choice,) = response.json()["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")
        assert (choice["finish_detail"], choice["stop_reason"]) == ("stop_sequence", "c")


async def test_a_whole_number_may_be_written_with_a_point(rig: AppRig) -> None:
    fields = {"max_tokens": 3.0, "seed": 7.0, "top_k": 5.0, "n": 1.0, "logprobs": 0.0}
    response = await rig.post("/v1/completions", prompt="ab", **fields)
    assert response.status_code == 200, response.text
    params = rig.core.added[0].params
    assert (params.max_tokens, params.seed, params.top_k, params.logprobs) == (3, 7, 5, 0)
    assert type(params.max_tokens) is int


async def test_sampling_fields_reach_the_engine(rig: AppRig) -> None:
    await rig.post(
        "/v1/completions",
        prompt="a",
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        seed=-3,
        ignore_eos=True,
        stop_token_ids=[5],
        stop=["z"],
        min_p=0.1,
        min_tokens=2,
        repetition_penalty=1.25,
        presence_penalty=-1,
        frequency_penalty=0.5,
        logit_bias={"7": -100, "8": 1.5},
        allowed_token_ids=[7, 8, 7],
        bad_words=["cab"],
    )
    params = rig.core.added[0].params
    assert (params.min_p, params.min_tokens, params.repetition_penalty) == (0.1, 2, 1.25)
    assert (params.presence_penalty, params.frequency_penalty) == (-1, 0.5)
    assert (params.logit_bias, params.allowed_token_ids) == ({7: -100, 8: 1.5}, (7, 8))
    assert params.bad_words_token_ids
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.9, 7, -3)
    assert (params.ignore_eos, params.stop_token_ids, params.stop_strings) == (True, (5,), ("z",))


async def test_the_models_own_sampling_applies_when_the_client_says_nothing(rig: AppRig) -> None:
    await rig.post("/v1/completions", prompt="a", temperature=None)
    params = rig.core.added[0].params
    assert (params.temperature, params.top_k, params.top_p) == (0.25, 20, 0.5)
    assert (params.min_p, params.repetition_penalty) == (0.125, 1.5)
    await rig.post("/v1/completions", prompt="a", temperature=0)
    assert rig.core.added[1].params.greedy


async def test_unknown_and_harmless_fields_are_ignored(rig: AppRig) -> None:
    response = await rig.chat(
        user="me", metadata={"a": "b"}, store=False, parallel_tool_calls=True, n=1, max_tokens=1,
        logprobs=False, top_logprobs=0, presence_penalty=0, response_format={"type": "text"},
        service_tier="auto", tool_choice="auto", something_new=[1],
    )  # fmt: skip
    assert response.status_code == 200


# ---- streams ------------------------------------------------------------------------------------


async def test_a_chat_streams_in_openais_format(rig: AppRig) -> None:
    messages = [{"role": "user", "content": "ab"}]
    events = await rig.events("/v1/chat/completions", messages=messages, max_tokens=8)
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == "user\nab"
    assert chunks[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "finish_reason": "length",
        "finish_detail": "max_tokens",
        "stop_reason": None,
        "logprobs": None,
    }
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


async def test_usage_comes_last_when_it_is_asked_for(rig: AppRig) -> None:
    for path, prompt in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ab"}]}),
        ("/v1/completions", {"prompt": "abcd"}),
    ):
        events = await rig.events(
            path, **prompt, max_tokens=3, stream_options={"include_usage": True}
        )
        *chunks, last, done = events
        assert done == "[DONE]"
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 3
        assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        assert all(chunk["usage"] is None for chunk in chunks)


async def test_several_prompts_share_one_stream(rig: AppRig) -> None:
    events = await rig.events("/v1/completions", prompt=["ab", "cd", "ef"], max_tokens=3)
    assert events.pop() == "[DONE]"
    texts = {0: "", 1: "", 2: ""}
    reasons = []
    for event in events:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert texts == {0: "aba", 1: "cdc", 2: "efe"}
    assert reasons == ["length"] * 3


async def test_the_official_client_streams_a_chat(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=SERVED_NAME,
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=7,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, reason, usage = "", None, None
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
        usage = chunk.usage or usage
    assert text == "user\nhel"
    assert reason == "length"
    assert usage is not None
    assert usage.completion_tokens == 7


async def test_the_official_client_understands_every_answer_and_refusal(
    client: AsyncOpenAI,
) -> None:
    chat = await client.chat.completions.create(
        model=SERVED_NAME, messages=[{"role": "user", "content": "x"}], max_tokens=1
    )
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 1
    text = await client.completions.create(model=SERVED_NAME, prompt="ab", max_tokens=2)
    assert text.choices[0].text == "ab"
    assert [model.id async for model in await client.models.list()] == [SERVED_NAME]
    assert (await client.models.retrieve(SERVED_NAME)).id == SERVED_NAME
    with pytest.raises(NotFoundError, match=SERVED_NAME) as missing:
        await client.completions.create(model="gpt-5", prompt="ab")
    assert missing.value.code == "model_not_found"
    with pytest.raises(BadRequestError, match="max_tokens") as refused:
        await client.completions.create(model=SERVED_NAME, prompt="ab", max_tokens=-1)
    assert refused.value.param == "max_tokens"


async def test_text_comes_before_the_answer_is_complete(rig: AppRig) -> None:
    rig.core.held = True
    body = {"prompt": "abcd", "max_tokens": 4, "stream": True}
    async with rig.client.stream("POST", "/v1/completions", json=body) as response:
        await eventually(lambda: bool(rig.core.added), "the request reached the engine")
        lines = (line async for line in response.aiter_lines() if line)
        for entry in "abc":
            rig.core.step()
            assert f'"text":"{entry}"' in await anext(lines)


# ---- readers that leave -------------------------------------------------------------------------


async def test_a_reader_that_leaves_a_stream_aborts_the_request(rig: AppRig) -> None:
    rig.core.held = True
    body = {"prompt": ["abcd", "efgh"], "stream": True}
    async with rig.client.stream("POST", "/v1/completions", json=body) as response:
        await eventually(lambda: len(rig.core.added) == 2, "both prompts reached the engine")
        rig.core.step()
        await anext(response.aiter_bytes())
    await eventually(lambda: sorted(rig.core.aborted) == [1, 2], "both were aborted")
    assert rig.engine.open_requests == 0


async def test_a_client_that_gives_up_waiting_aborts_the_request(rig: AppRig) -> None:
    rig.core.held = True
    waiting = asyncio.create_task(rig.chat("abcd"))
    await eventually(lambda: bool(rig.core.added), "the request reached the engine")
    waiting.cancel()
    await eventually(lambda: rig.core.aborted == [1], "it was aborted")
    assert rig.engine.open_requests == 0


async def test_a_reader_that_does_not_read_delays_no_one(rig: AppRig) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port, limit=1)
    body = b'{"prompt": "abcd", "stream": true, "max_tokens": 50}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    writer.write(head + body)
    await writer.drain()
    await eventually(lambda: bool(rig.core.added), "the request reached the engine")
    assert (await rig.chat("x", max_tokens=5)).json()["usage"]["completion_tokens"] == 5
    writer.close()
    assert reader is not None


# ---- the engine's troubles ----------------------------------------------------------------------


async def test_when_the_engine_dies_open_streams_get_an_error_event(rig: AppRig) -> None:
    rig.core.held = True
    lines: list[str] = []
    body = {"prompt": "abcd", "stream": True}
    async with rig.client.stream("POST", "/v1/completions", json=body) as response:
        await eventually(lambda: bool(rig.core.added), "the request reached the engine")
        rig.core.step()
        rig.core.die("killed by signal 9")
        lines = [line async for line in response.aiter_lines() if line]
    assert '"text":"a"' in lines[0]
    assert "killed by signal 9" in lines[-1]
    assert '"code":"engine_dead"' in lines[-1]
    assert len(lines) == 2
    for path, status in (("/health", 503), ("/live", 503), ("/v1/models", 200)):
        assert (await rig.client.get(path)).status_code == status, path
    health = (await rig.client.get("/health")).json()
    assert health == {"status": "dead", "reason": "killed by signal 9"}
    refused = await rig.chat("x")
    assert refused.status_code == 503
    assert "killed by signal 9" in refused.json()["error"]["message"]


async def test_when_the_engine_dies_a_waiting_client_gets_an_error(rig: AppRig) -> None:
    rig.core.held = True
    chat = asyncio.create_task(rig.chat("abcd"))
    many = asyncio.create_task(rig.post("/v1/completions", prompt=["ab", "cd"]))
    await eventually(lambda: len(rig.core.added) == 3, "the requests reached the engine")
    rig.core.die("out of memory")
    for response in (await chat, await many):
        assert response.status_code == 503
        assert response.headers["retry-after"]
        assert "out of memory" in response.json()["error"]["message"]


async def test_a_slow_start_outlives_its_budget_and_a_stalled_one_fails_liveness(
    config: Config,
) -> None:
    now = 0.0
    async with serve_app(config, ready_on_start=False) as rig:
        rig.state.timeline = StartupTimeline(100.0, clock=lambda: now)
        rig.state.timeline.note("loading weights", 0.25)
        progress = (await rig.client.get("/health")).json()["progress"]
        assert (progress["phase"], progress["fraction"]) == ("loading weights", 0.25)

        async def answers() -> tuple[int, int]:
            paths = ("/startup", "/live")
            startup, live = [(await rig.client.get(path)).status_code for path in paths]
            return startup, live

        assert await answers() == (503, 200)
        now = 12.0
        rig.state.timeline.note("loading weights", 0.5)
        progress = (await rig.client.get("/startup")).json()["progress"]
        assert (progress["fraction"], progress["seconds_left"]) == (0.5, 12.0)
        now = 99.0
        assert await answers() == (200, 200)
        now = 300.0
        assert await answers() == (503, 503)
        rig.core.become_ready()
        await rig.engine.wait_ready()
        assert await answers() == (200, 200)


async def test_health_follows_the_engine(config: Config) -> None:
    async with serve_app(config, ready_on_start=False) as rig:
        health = await rig.client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "starting"
        assert (await rig.client.get("/live")).status_code == 200
        assert (await rig.client.get("/server_info")).status_code == 503
        refused = await rig.chat("x")
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        rig.core.become_ready()
        await rig.engine.wait_ready()
        health = await rig.client.get("/health")
        assert (health.status_code, health.json()) == (200, {"status": "ok"})
        rig.core.held = True
        chat = asyncio.create_task(rig.chat("x", max_tokens=2))
        await eventually(lambda: bool(rig.core.added), "the request reached the engine")
        drain = asyncio.create_task(rig.engine.drain(10))
        await eventually(lambda: rig.engine.status.state == "draining", "draining")
        health = await rig.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        assert (await rig.client.get("/live")).status_code == 200
        assert (await rig.chat("y")).status_code == 503
        rig.core.release()
        assert (await chat).status_code == 200
        assert await drain == 0


@pytest.mark.parametrize("path", ["/health", "/ready", "/live", "/startup", "/metrics"])
async def test_a_load_balancer_may_ask_by_head(config: Config, path: str) -> None:
    async with serve_app(config, ready_on_start=False) as rig:
        for _ in ("starting", "ready"):
            asked = await rig.client.get(path)
            head = await rig.client.head(path)
            assert (head.status_code, head.content) == (asked.status_code, b"")
            rig.core.become_ready()
            await rig.engine.wait_ready()


async def test_server_info_tells_what_start_up_found(rig: AppRig) -> None:
    info = (await rig.client.get("/server_info")).json()
    assert info["served_model_name"] == SERVED_NAME
    assert info["kv_tokens"] == info["num_blocks"] * info["block_size"] == 1600
    assert info["concurrency"] == [{"context_tokens": CONTEXT, "sequences": 25}]
    assert info["vocab_size"] == 294
    assert (await rig.client.get("/version")).json()["version"]


async def test_special_tokens_are_not_added_to_what_the_template_wrote(rig: AppRig) -> None:
    special = rig.engine.processor.tokenizer._tokenizer.token_to_id(  # type: ignore[union-attr]
        END_OF_TEXT
    )
    await rig.chat("a", max_tokens=1)
    assert special not in rig.core.added[0].prompt_token_ids


async def test_the_openapi_document_describes_the_bodies(rig: AppRig) -> None:
    document = (await rig.client.get("/openapi.json")).json()
    post = document["paths"]["/v1/chat/completions"]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    name = schema["$ref"].rsplit("/", 1)[1]
    assert "messages" in document["components"]["schemas"][name]["properties"]
