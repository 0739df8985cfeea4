"""A real server and the fields that clients of vLLM, SGLang, llama.cpp and Together send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.support.server.server_process import SERVED_NAME, ServerProcess, server_process

CHECKPOINT = Path(__file__).resolve().parents[4] / "examples" / "models" / "atom-tiny"
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "What is ATOM?"}]
SCHEMA = {
    "type": "object",
    "properties": {"speed": {"enum": ["slow", "fast"]}, "count": {"type": "integer", "maximum": 9}},
    "required": ["speed", "count"],
}
GRAMMAR = 'root ::= "yes" | "no"'
TAG = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": SCHEMA}}
OLD_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f>"],
    "at_least_one": True,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with server_process(CHECKPOINT, log, "--max-num-seqs", "32") as server:
        yield server.wait_ready()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    body = {"messages": MESSAGES, "max_tokens": 60, "temperature": 0, **fields}
    answer = server.post("/v1/chat/completions", **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def complete(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    body = {"prompt": "ATOM is", "max_tokens": 20, "temperature": 0, **fields}
    answer = server.post("/v1/completions", **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def text_of(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


# ---- schemas by every name ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"json_schema": SCHEMA},
        {"json_schema": json.dumps(SCHEMA)},
        {"response_format": TAG},
        {"structural_tag": TAG},
        {"structured_outputs": {"structural_tag": json.dumps(TAG)}},
        {"guided_json": SCHEMA, "grammar": ""},
    ],
)
def test_a_schema_is_kept_to_by_whatever_name_it_comes(
    server: ServerProcess, fields: dict[str, Any]
) -> None:
    found = json.loads(text_of(chat(server, max_tokens=200, **fields)))
    assert found["speed"] in ("slow", "fast")
    assert found["count"] <= 9


@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": GRAMMAR}, {"ebnf": GRAMMAR}, {"regex": "yes|no"},
        {"response_format": {"type": "grammar", "grammar": GRAMMAR}},
        {"response_format": {"type": "regex", "pattern": "yes|no"}},
        {"structured_outputs": {"grammar": GRAMMAR}}, {"guided_choice": ["yes", "no"]},
    ],
)  # fmt: skip
def test_a_grammar_or_expression_is_kept_to_by_whatever_name_it_comes(
    server: ServerProcess, fields: dict[str, Any]
) -> None:
    assert text_of(chat(server, **fields)) in ("yes", "no")
    assert complete(server, **fields)["choices"][0]["text"] in ("yes", "no")


def test_structures_behind_triggers_are_kept_to(server: ServerProcess) -> None:
    text = text_of(chat(server, response_format=OLD_TAG, max_tokens=300))
    inner = text.partition("<f>")[2].partition("</f>")[0]
    assert json.loads(inner)["speed"] in ("slow", "fast")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"response_format": {"type": "grammar"}}, "response_format.grammar: is required"),
        ({"response_format": {"type": "structural_tag"}}, "needs format, or structures"),
        ({"structural_tag": "{"}, "structural_tag: a structural tag is no JSON"),
        ({"structural_tag": {"format": {"type": "json_schema"}}}, "needs json_schema"),
        ({"structural_tag": {"format": {"type": "nothing"}}}, "structural_tag"),
        ({"regex": "a", "grammar": GRAMMAR}, "both ask for structured output"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn is no field"),
        (
            {"structured_outputs": {"json": SCHEMA, "mine": 1}},
            "structured_outputs.mine is no field",
        ),
    ],
)
def test_what_is_no_structure_is_refused_by_name(
    server: ServerProcess, fields: dict[str, Any], said: str
) -> None:
    answer = server.post("/v1/chat/completions", messages=MESSAGES, **fields)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


# ---- tokens -------------------------------------------------------------------------------------


def test_token_ids_come_with_answer_and_prompt(server: ServerProcess) -> None:
    answer = chat(server, return_token_ids=True, max_tokens=8)
    assert len(answer["choices"][0]["token_ids"]) == answer["usage"]["completion_tokens"]
    asked = server.post("/tokenize", messages=MESSAGES).json()
    assert answer["prompt_token_ids"] == asked["tokens"]
    plain = complete(server, return_token_ids=True, n=2, max_tokens=3)
    for choice in plain["choices"]:
        assert len(choice["token_ids"]) == 3
        assert choice["prompt_token_ids"] == server.tokenize("ATOM is")
    assert "token_ids" not in complete(server)["choices"][0]


def test_token_ids_stream_and_are_the_whole_answers(server: ServerProcess, client: OpenAI) -> None:
    whole = chat(server, return_token_ids=True, max_tokens=12)
    stream = client.chat.completions.create(
        model=SERVED_NAME, messages=MESSAGES, max_tokens=12, temperature=0, stream=True,  # type: ignore[arg-type]
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    chunks = [chunk.model_dump() for chunk in stream]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    told = [chunk["choices"][0].get("token_ids") or [] for chunk in chunks]
    assert [token for ids in told for token in ids] == whole["choices"][0]["token_ids"]
    plain = client.completions.create(
        model=SERVED_NAME, prompt="ATOM is", max_tokens=5, temperature=0, stream=True,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    choices = [chunk.model_dump()["choices"][0] for chunk in plain]
    assert [len(choice.get("prompt_token_ids") or []) > 0 for choice in choices].count(True) == 1
    whole = complete(server, return_token_ids=True, max_tokens=5)
    assert [token for choice in choices for token in choice.get("token_ids") or []] == whole[
        "choices"
    ][0]["token_ids"]


@pytest.mark.parametrize("n", [1, 2])
def test_usage_runs_along_a_stream(client: OpenAI, n: int) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    asked: dict[str, Any] = {
        "model": SERVED_NAME, "max_tokens": 6, "n": n, "stream": True, "stream_options": options,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    for stream in (
        client.chat.completions.create(messages=MESSAGES, **asked),
        client.completions.create(prompt="ATOM is", **asked),
    ):
        told = [chunk.usage for chunk in stream]
        assert all(usage is not None for usage in told)
        counts = [usage.completion_tokens for usage in told]
        assert counts == sorted(counts)
        assert counts[-1] == 6 * n
        assert 0 < counts[len(counts) // 2] <= 6 * n
        assert len({usage.prompt_tokens for usage in told}) == 1


def test_tokens_of_logprobs_are_named_by_their_ids(server: ServerProcess) -> None:
    fields = {"return_tokens_as_token_ids": True, "return_token_ids": True, "max_tokens": 4}
    answer = chat(server, logprobs=True, top_logprobs=2, **fields)
    choice = answer["choices"][0]
    named = [entry["token"] for entry in choice["logprobs"]["content"]]
    assert named == [f"token_id:{token}" for token in choice["token_ids"]]
    assert all(
        top["token"].startswith("token_id:")
        for entry in choice["logprobs"]["content"]
        for top in entry["top_logprobs"]
    )


def test_special_tokens_are_shown_when_asked_for(server: ServerProcess) -> None:
    fields = {"include_stop_str_in_output": True, "max_tokens": 200}
    hidden = chat(server, **fields)["choices"][0]
    shown = chat(server, skip_special_tokens=False, **fields)["choices"][0]
    assert (hidden["finish_reason"], shown["finish_reason"]) == ("stop", "stop")
    end = shown["message"]["content"].removeprefix(hidden["message"]["content"])
    assert end.startswith("<|")
    assert end.endswith("|>")
    bare = chat(server, skip_special_tokens=False, max_tokens=200)["choices"][0]
    assert bare["message"]["content"] == hidden["message"]["content"]
    (token,) = server.post("/tokenize", prompt=end, add_special_tokens=False).json()["tokens"]
    assert server.post("/detokenize", tokens=[token]).json()["prompt"] == ""
    told = server.post("/detokenize", tokens=[token], skip_special_tokens=False)
    assert told.json()["prompt"] == end


def test_a_stop_string_is_shown_when_asked_for(server: ServerProcess) -> None:
    whole = complete(server, max_tokens=40)["choices"][0]["text"]
    stop = whole[8:12]
    before = whole[: whole.index(stop)]
    for fields, text in (
        ({}, before),
        ({"include_stop_str_in_output": True}, before + stop),
        ({"no_stop_trim": True}, before + stop),
    ):
        choice = complete(server, max_tokens=40, stop=stop, **fields)["choices"][0]
        assert (choice["text"], choice["stop_reason"]) == (text, stop)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_prompt_is_cut_to_so_many_tokens(server: ServerProcess, side: str) -> None:
    prompt = "one two three four five six seven eight"
    tokens = server.tokenize(prompt)
    cut = complete(
        server, prompt=prompt, truncate_prompt_tokens=3, truncation_side=side, return_token_ids=True
    )
    kept = tokens[:3] if side == "right" else tokens[-3:]
    assert cut["choices"][0]["prompt_token_ids"] == kept
    assert cut["usage"]["prompt_tokens"] == 3


def test_a_prompt_beyond_the_context_is_cut_to_what_fits(server: ServerProcess) -> None:
    context = server.get("/v1/models").json()["data"][0]["max_model_len"]
    prompt = "word " * (4 * context)
    assert server.post("/v1/completions", prompt=prompt).status_code == 400
    cut = complete(server, prompt=prompt, truncate_prompt_tokens=-1, max_tokens=5)
    assert cut["usage"]["prompt_tokens"] == context - 5
    for wrong in (0, -2, context + 1):
        answer = server.post("/v1/completions", prompt="a", truncate_prompt_tokens=wrong)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "truncate_prompt_tokens"


def test_tokenize_tells_the_tokens_texts(server: ServerProcess) -> None:
    told = server.post("/tokenize", prompt="ATOM is", return_token_strs=True).json()
    assert "".join(told["token_strs"]) == "ATOM is"
    assert "token_strs" not in server.post("/tokenize", prompt="a").json()


# ---- conversations ------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["continue_final_message", "prefix"])
def test_an_answer_goes_on_with_its_beginning(server: ServerProcess, by: str) -> None:
    begun: dict[str, Any] = {"role": "assistant", "content": "ATOM is  "}
    fields: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    if by == "prefix":
        begun["prefix"], fields = True, {}
    messages = [*MESSAGES, begun]
    asked = server.post("/tokenize", messages=messages, **fields).json()["tokens"]
    text = server.post("/detokenize", tokens=asked, skip_special_tokens=False).json()["prompt"]
    assert text.endswith("ATOM is  ")
    answer = chat(server, messages=messages, return_token_ids=True, max_tokens=5, **fields)
    assert answer["prompt_token_ids"] == asked


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": MESSAGES, "continue_final_message": True}, "must be the assistant's"),
        (
            {
                "messages": [*MESSAGES, {"role": "assistant", "content": "a"}],
                "continue_final_message": True,
                "add_generation_prompt": True,
            },
            "cannot both be true",
        ),
        (
            {"messages": [{"role": "assistant", "content": "a", "prefix": True}, *MESSAGES]},
            "messages[0].prefix: only the last",
        ),
        ({"messages": MESSAGES, "documents": [{"text": "a"}]}, "has no place for them"),
        ({"messages": MESSAGES, "request_id": "a b"}, "request_id"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused(
    server: ServerProcess, fields: dict[str, Any], said: str
) -> None:
    answer = server.post("/v1/chat/completions", **fields)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_without_the_generation_prompt_the_conversation_ends_as_it_is(
    server: ServerProcess,
) -> None:
    full = server.post("/tokenize", messages=MESSAGES).json()["tokens"]
    bare = server.post("/tokenize", messages=MESSAGES, add_generation_prompt=False).json()["tokens"]
    assert bare == full[: len(bare)]
    assert len(bare) < len(full)


@pytest.mark.parametrize("name", ["request_id", "rid"])
def test_an_answers_id_ends_with_the_clients(server: ServerProcess, name: str) -> None:
    assert chat(server, max_tokens=1, **{name: "job-7"})["id"] == "chatcmpl-job-7"
    assert complete(server, **{name: "job-7"})["id"] == "cmpl-job-7"


def test_the_length_of_an_answer_has_every_servers_name(server: ServerProcess) -> None:
    for name in ("max_tokens", "max_completion_tokens", "n_predict"):
        for answer in (
            chat(server, **{"max_tokens": None, name: 3}),
            complete(server, **{"max_tokens": None, name: 3}),
        ):
            assert answer["usage"]["completion_tokens"] == 3
    endless = complete(server, max_tokens=None, n_predict=-1)
    assert (
        endless["usage"]["completion_tokens"] > 16
        or endless["choices"][0]["finish_reason"] == "stop"
    )


def test_unknown_fields_are_told_and_misspelled_ones_refused(
    server: ServerProcess, client: OpenAI
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=SERVED_NAME,
        messages=MESSAGES,  # type: ignore[arg-type]
        max_tokens=1,
        extra_body={"chat_id": 7, "my_own": {"a": 1}},
    )
    assert raw.headers["x-ignored-fields"] == "chat_id, my_own"
    assert "without effect: 'chat_id', 'my_own'" in server.log
    refused = server.post("/v1/chat/completions", messages=MESSAGES, temprature=1)
    assert refused.status_code == 400
    assert "did you mean temperature?" in refused.json()["error"]["message"]
    nested = server.post("/v1/chat/completions", messages=[{**MESSAGES[0], "audio": {"id": "x"}}])
    assert nested.json()["error"]["message"].startswith("messages[0].audio is not supported")


def test_a_budget_of_a_model_that_does_not_reason(server: ServerProcess) -> None:
    """atom-tiny's template says nothing of reasoning."""
    assert chat(server, max_tokens=2, thinking={"type": "enabled", "budget_tokens": 9})["choices"]
    assert chat(server, max_tokens=2, reasoning_effort="low")["choices"]
    refused = server.post("/v1/chat/completions", messages=MESSAGES, thinking_token_budget=9)
    assert refused.status_code == 400
    assert "start it with --reasoning-parser" in refused.json()["error"]["message"]
