"""A response as a value: with what was asked for before anything has come, and whole at its end.

Knows the API's shapes and a chat's answers; no HTTP, no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from atom.answer_parsing import CallStart, Content
from atom.config import GenerationDefaults
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.chat_parsing import call_id, events_in
from atom.entrypoints.openai.choices import AnswerHead, Answers, Piece
from atom.entrypoints.openai.logprobs import PlacedLogprobs, TokenNames, chat_logprobs
from atom.entrypoints.responses import events as told
from atom.entrypoints.responses.objects import (
    IncompleteDetails,
    ItemStatus,
    MessageItem,
    OutputText,
    ReasoningEcho,
    ResponseObject,
    TextEcho,
    TextLogprob,
    TopLogprob,
)
from atom.entrypoints.responses.output import OutputItems
from atom.entrypoints.responses.protocol import (
    ENCRYPTED_REASONING,
    ReasoningConfig,
    ResponsesRequest,
    TextConfig,
)
from atom.entrypoints.responses.tools import ChatTools
from atom.errors import RequestError
from atom.model_engine.request import FinishReason

_TIERS = {None: "default", "auto": "default"}


EXAMPLE_RESPONSE = ResponseObject(
    id="resp_example",
    created_at=0,
    completed_at=1,
    status="completed",
    instructions=None,
    max_output_tokens=16,
    model="MODEL",
    output=[MessageItem("msg_1", [OutputText("Hello.")], "completed")],
    parallel_tool_calls=True,
    previous_response_id=None,
    prompt_cache_key=None,
    reasoning=ReasoningEcho(None, None),
    safety_identifier=None,
    service_tier="default",
    store=True,
    temperature=1.0,
    text=TextEcho({"type": "text"}, None),
    tool_choice=msgspec.Raw(b'"auto"'),
    tools=msgspec.Raw(b"[]"),
    top_logprobs=0,
    top_p=1.0,
    truncation="disabled",
    user=None,
    metadata={},
)


def begun_response(
    request: ResponsesRequest, head: AnswerHead, defaults: GenerationDefaults, *, stores: bool
) -> ResponseObject:
    """Build the initial response with the request's options, and our defaults for the others."""
    reasoning = request.reasoning or ReasoningConfig()
    text = request.text or TextConfig()
    form: dict[str, Any] = {"type": "text"}
    if text.format is not None:
        form = text.format.model_dump(by_alias=True, exclude_none=True)
    return ResponseObject(
        id=head.id,
        created_at=head.created,
        status="in_progress",
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        model=head.model,
        output=[],
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        reasoning=ReasoningEcho(reasoning.effort, reasoning.summary),
        safety_identifier=request.safety_identifier,
        service_tier=_TIERS.get(request.service_tier, request.service_tier or "default"),
        store=stores,
        temperature=_first(request.temperature, defaults.temperature),
        text=TextEcho(form, text.verbosity),
        tool_choice=msgspec.Raw(to_json(request.tool_choice or "auto")),
        tools=msgspec.Raw(to_json([_shown_tool(tool) for tool in request.tools or ()])),
        top_logprobs=request.top_logprobs or 0,
        top_p=_first(request.top_p, defaults.top_p),
        truncation="disabled",
        user=request.user,
        metadata=request.metadata or {},
    )


def _shown_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        return tool
    return {"parameters": None, **tool, "strict": tool.get("strict") is True}


def _first(*values: float | None) -> float:
    return next((value for value in values if value is not None), 1.0)


def output_items(request: ResponsesRequest, tools: ChatTools, answers: Answers) -> OutputItems:
    parsing = answers.shown.parsing

    def id_of(start: CallStart) -> str:
        assert parsing is not None  # else there are no calls
        return call_id(start, parsing)

    return OutputItems(tools.called, id_of, seals_reasoning=request.includes(ENCRYPTED_REASONING))


def response_end(answers: Answers) -> tuple[ItemStatus, IncompleteDetails | None]:
    """Return how a complete answer ended."""
    if answers.lasts[0].finish_reason == FinishReason.LENGTH:
        return "incomplete", IncompleteDetails("max_output_tokens")
    return "completed", None


class AnswerReader:
    """Convert pieces of an answer to items and events, for whole and streamed answers alike."""

    def __init__(self, answers: Answers, output: OutputItems) -> None:
        self.output = output
        self._answers = answers
        parsing = answers.shown.parsing
        self._parser = None if parsing is None else parsing.parser()
        self._logprobs: list[TextLogprob] = []

    def take(self, piece: Piece) -> list[told.Event]:
        """Process a piece. Log-probabilities accompany their text, which may still be held back;
        those of reasoning and calls are not shown."""
        self._logprobs += text_logprobs(piece.logprobs, self._answers.names)
        events: list[told.Event] = []
        for found in events_in(self._parser, piece):
            is_text = isinstance(found, Content)
            events += self.output.add(found, self._logprobs if is_text else None)
            self._logprobs = []
        return events


async def whole_response(
    answers: Answers, reader: AnswerReader, begun: ResponseObject
) -> ResponseObject:
    """Collect an answer to its end. Raises its stream's errors."""
    (choice,) = answers.readers
    async for outputs in answers.group:
        for _, output in outputs:
            reader.take(choice.read(output))
    if not answers.lasts:
        raise RequestError("the request was aborted", status=499)
    status, details = response_end(answers)
    reader.output.end(status)
    return begun.completed(status, reader.output.items, answers.usage(), details)


def text_logprobs(placed: Sequence[PlacedLogprobs] | None, names: TokenNames) -> list[TextLogprob]:
    if not placed:
        return []
    return [
        TextLogprob(
            each.token,
            each.logprob,
            each.bytes,
            [TopLogprob(top.token, top.logprob, top.bytes) for top in each.top_logprobs],
        )
        for each in chat_logprobs(placed, names).content
    ]
