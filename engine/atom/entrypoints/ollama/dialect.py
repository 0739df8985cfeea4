"""/api/chat and /api/generate: requests to chats or completions, their outputs to lines of JSON.

A thin translation: the chat that a request becomes is checked and answered as every chat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec import UNSET
from pydantic import ValidationError

from atom.answer_parsing import CallArguments, CallStart, Content, Event
from atom.entrypoints.anthropic.message_events import input_of
from atom.entrypoints.http.errors import describe
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.sse import EventStream
from atom.entrypoints.ollama.shapes import (
    OllamaBody,
    OllamaChatRequest,
    OllamaError,
    OllamaGenerateRequest,
    OllamaLine,
    Said,
)
from atom.entrypoints.openai.body import refusal
from atom.entrypoints.openai.chat_parsing import events_in, events_of
from atom.entrypoints.openai.chat_prompt import chat_work
from atom.entrypoints.openai.choices import AnswerHead, Answers, Piece, render
from atom.entrypoints.openai.frames import StreamEvents
from atom.entrypoints.openai.generation import Dialect
from atom.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from atom.entrypoints.openai.responses import Timings
from atom.entrypoints.openai.serving_chat import start_chat
from atom.entrypoints.openai.serving_completion import start_completion
from atom.errors import RequestError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.request import FinishReason

_SAME = (
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip
_OPTIONS = dict(zip(_SAME, _SAME, strict=True)) | {
    "num_predict": "n_predict",
    "repeat_penalty": "repetition_penalty",
}
_BY_FLAGS = (  # of the server, at its start
    "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "numa", "low_vram",
    "f16_kv", "use_mmap", "use_mlock", "logits_all", "vocab_only",
)  # fmt: skip
_NOTHING = {"mirostat": 0, "tfs_z": 1, "typical_p": 1, "repeat_last_n": -1}
_IMAGE = "data:image/png;base64,"  # of any kind: the decoder looks at the bytes alone
_NS = 1_000_000  # nanoseconds of a millisecond


async def start_ollama(
    engine: AsyncLLMEngine, request: OllamaBody, request_id: str, *, client_id: str, **times: Any
) -> Answers:
    """Queue the request. Raises `RequestError` for whatever is wrong with it."""
    times["client_id"] = client_id
    if isinstance(request, OllamaGenerateRequest) and (
        request.raw or not engine.processor.has_chat_template
    ):
        fields = {"n_predict": -1, **_common(request), "prompt": request.prompt}
        completion = _checked(CompletionRequest, fields)
        return await start_completion(engine, completion, request_id, **times)
    make = partial(_checked, ChatCompletionRequest, _chat_fields(request))
    chat = await chat_work(engine, client_id, request, make)
    return await start_chat(engine, chat, request_id, **times)


def _checked(kind: Any, fields: dict[str, Any]) -> Any:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise refusal(error) from None


def _common(request: OllamaBody) -> dict[str, Any]:
    fields = {"model": request.model, "stream": request.stream, "return_timings": True}
    for name, value in (request.options or {}).items():
        if name in _OPTIONS:
            fields[_OPTIONS[name]] = value
        elif name not in _BY_FLAGS and value is not None and value != _NOTHING.get(name):
            raise RequestError(
                f"options.{name[:64]} is not supported by this server; leave it out, or use "
                f"{', '.join(_OPTIONS)}",
                param="options",
                code="unsupported_parameter",
            )
    if fields.get("n_predict") == -2:
        fields["n_predict"] = -1
    if request.format == "json":
        fields["response_format"] = {"type": "json_object"}
    elif request.format:
        schema = {"name": "format", "schema": request.format}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _chat_fields(request: OllamaBody) -> dict[str, Any]:
    fields = _common(request)
    if request.think is not None:
        is_switch = isinstance(request.think, bool)
        fields["enable_thinking" if is_switch else "reasoning_effort"] = request.think
    if isinstance(request, OllamaChatRequest):
        fields |= {"messages": list(_messages(request.messages)), "tools": request.tools or None}
    elif isinstance(request, OllamaGenerateRequest):
        said = {"role": "user", "content": request.prompt, "images": request.images}
        system = [{"role": "system", "content": request.system}] if request.system else []
        fields["messages"] = list(_messages([*system, said]))
    return fields


def _messages(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the messages of a chat. A result without an id is that of the oldest open call."""
    calls: list[str] = []
    for number, message in enumerate(messages):
        said: dict[str, Any] = {
            "role": message.get("role"),
            "content": message.get("content") or "",
        }
        if message.get("thinking"):
            said["reasoning"] = message["thinking"]
        if images := _list_in(message, "images", str, number):
            urls = [{"url": f"{_IMAGE}{each}"} for each in images]
            pictures = [{"type": "image_url", "image_url": url} for url in urls]
            said["content"] = [*pictures, {"type": "text", "text": said["content"]}]
        if made := _list_in(message, "tool_calls", dict, number):
            named = [{"id": f"call_{number}_{i}", **call} for i, call in enumerate(made)]
            said["tool_calls"] = [{**call, "type": "function"} for call in named]
            calls += [call["id"] for call in named]
        if message.get("role") == "tool":
            given = message.get("tool_call_id") or next(iter(calls), f"call_{number}")
            calls = [each for each in calls if each != given]
            said |= {"tool_call_id": given, "name": message.get("tool_name") or message.get("name")}
        yield said


def _list_in(message: dict[str, Any], name: str, kind: type, number: int) -> list[Any]:
    """Return a list of a message; empty if it has none. Raises `RequestError`."""
    found = message.get(name) or []
    if isinstance(found, list) and all(isinstance(each, kind) for each in found):
        return found
    what = "texts in base64" if kind is str else "objects with function"
    raise RequestError(f"messages[{number}].{name}: must be a list of {what}", param="messages")


class OllamaEvents(StreamEvents):
    """EventShape of both endpoints: lines of JSON. A call is a part of its own, once it is whole.
    Also writes whole answers."""

    def __init__(
        self, chats: bool, answers: Answers, head: AnswerHead, *, with_usage: bool = False
    ) -> None:
        """chats: of /api/chat."""
        super().__init__(answers, head, with_usage=with_usage)
        self._chats = chats
        parsing = answers.shown.parsing
        self._parser = None if parsing is None else parsing.parser()
        self._call: CallStart | None = None
        self._arguments: list[str] = []

    def shows_as_is(self, index: int) -> bool:
        return self._parser is None or self._parser.passes_on

    def text(self, index: int, text: str) -> bytes:
        return self.line(Said(text))

    def piece(self, index: int, piece: Piece) -> bytes:
        parts = self.parts(events_in(self._parser, piece), ended=piece.output.finished)
        return b"".join(map(self.line, parts))

    def closing(self) -> bytes:
        return self.line(Said(), figures_of(self._answers))

    def failure(self, error: Exception) -> bytes:
        return to_json(OllamaError(describe(error)[1].error.message)) + b"\n"

    def parts(self, events: Sequence[Event], *, ended: bool) -> Iterator[Said]:
        """Yield the parts that events add to a message. ended: these are its last events."""
        for event in events:
            if isinstance(event, CallArguments):
                self._arguments.append(event.text)
                continue
            yield from self._ended_call()
            if isinstance(event, CallStart):
                self._call = event
            elif event.text and isinstance(event, Content):
                yield Said(event.text)
            elif event.text:
                yield Said(thinking=event.text)
        if ended:
            yield from self._ended_call()

    def _ended_call(self) -> Iterator[Said]:
        if self._call is not None:
            arguments = input_of("".join(self._arguments))
            yield Said(tool_calls=[{"function": {"name": self._call.name, "arguments": arguments}}])
        self._call, self._arguments = None, []

    def line(self, said: Said, end: dict[str, Any] | None = None) -> bytes:
        """Write a line. end: figures of the last one."""
        created = datetime.fromtimestamp(self._head.created, UTC).isoformat().replace("+00:00", "Z")
        head: dict[str, Any] = {
            "model": self._head.model,
            "created_at": created,
            "done": end is not None,
        }
        shown: dict[str, Any] = {"message": said}
        if not self._chats:
            shown = {"response": said.content, "thinking": said.thinking}
        return to_json(OllamaLine(**shown, **head, **(end or {}))) + b"\n"


def figures_of(answers: Answers) -> dict[str, Any]:
    """Return the figures of an answer that is complete."""
    usage, (last,) = answers.usage(), answers.lasts
    cut = last.finish_reason is FinishReason.LENGTH
    found: dict[str, Any] = {"done_reason": "length" if cut else "stop"}
    found |= {"prompt_eval_count": usage.prompt_tokens, "eval_count": usage.completion_tokens}
    timings = answers.timings(usage)
    if isinstance(timings, Timings):
        queue, prompt, answer = timings.queue_ms, timings.prompt_ms, timings.predicted_ms
        found |= {"load_duration": int(queue * _NS), "prompt_eval_duration": int(prompt * _NS)}
        found |= {"eval_duration": int(answer * _NS)}
        found |= {"total_duration": int((queue + prompt + answer) * _NS)}
    return found


async def complete_ollama(chats: bool, answers: Answers, head: AnswerHead) -> bytes:
    """Write the whole answer as one JSON body."""
    choices = await answers.collect()

    def body() -> bytes:
        text, parsing = "".join(choices[0].texts), answers.shown.parsing
        shape = OllamaEvents(chats, answers, head)
        events = events_of(parsing, text, str(answers.lasts[0].finish_reason))
        parts = list(shape.parts(events, ended=True))
        calls = [call for part in parts for call in part.tool_calls or ()]
        thought = "".join(part.thinking or "" for part in parts)
        content = "".join(part.content for part in parts)
        return shape.line(Said(content, thought or UNSET, calls or UNSET), figures_of(answers))

    return await render(choices, body, parses=answers.shown.parsing is not None)


class LineStream(EventStream):
    """Sends lines of JSON."""

    content_type = b"application/x-ndjson"


OLLAMA: tuple[Dialect[Any], ...] = (
    Dialect(
        "/api/chat", "ollama-", OllamaChatRequest, OllamaLine,
        start_ollama, partial(complete_ollama, True), partial(OllamaEvents, True),
        "Answer a conversation of Ollama's API",
        "The next message, as lines of JSON unless `stream` is false.",
        {"messages": [{"role": "user", "content": "What is ATOM?"}], "stream": False},
        LineStream,
    ),
    Dialect(
        "/api/generate", "ollama-", OllamaGenerateRequest, OllamaLine,
        start_ollama, partial(complete_ollama, False), partial(OllamaEvents, False),
        "Answer a prompt of Ollama's API",
        "Through the chat template, unless `raw` is true; lines of JSON unless `stream` is false.",
        {"prompt": "What is ATOM?", "raw": True, "stream": False},
        LineStream,
    ),
)  # fmt: skip
