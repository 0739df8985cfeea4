"""An answer's typed events to a message: whole, or as the events of a stream.

A message is a list of blocks: text, thinking and calls of tools. Each is begun, added to and ended
before the next, so that a stream puts together what a whole answer holds. Knows the shapes of the
Messages API; no HTTP, no tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import from_json

from atom.answer_parsing import (
    AnswerParsing,
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
)
from atom.entrypoints.anthropic.answers import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    SignatureDelta,
    StopDelta,
    StreamEvent,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    usage_of,
)
from atom.entrypoints.anthropic.errors import error_of
from atom.entrypoints.anthropic.sealed_thinking import sealed, signature_of
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.chat_parsing import call_id, events_in
from atom.entrypoints.openai.choices import AnswerHead, Answers, Piece
from atom.entrypoints.openai.frames import TextTemplate
from atom.model_engine.request import FinishReason

CALL_PREFIX = "toolu_"


def stop_of(answers: Answers, *, called: bool) -> StopDelta:
    """Return why an answer ended, after its last output."""
    (output,) = answers.lasts
    asked_tokens = answers.shown.asked_tokens
    if output.finish_reason is FinishReason.LENGTH:
        full = asked_tokens is not None and output.num_output_tokens < asked_tokens
        return StopDelta("model_context_window_exceeded" if full else "max_tokens", None)
    if called:
        return StopDelta("tool_use", None)
    stop = output.stop_reason
    if stop is None:
        return StopDelta("end_turn", None)
    # A stop sequence that names a special token ends an answer as that token.
    return StopDelta("stop_sequence", stop if isinstance(stop, str) else answers.names.of(stop)[0])


def blocks_of(
    events: Sequence[Event], parsing: AnswerParsing | None, *, seals: bool
) -> list[Block]:
    """Return the blocks of a whole answer. seals: reasoning is left out but for its signature."""
    made: list[Block] = []
    for run in _runs(events):
        first = run[0]
        text = "".join(event.text for event in run if not isinstance(event, CallStart))
        if isinstance(first, CallStart):
            assert parsing is not None
            number = call_id(first, parsing, CALL_PREFIX)
            made.append(ToolUseBlock(number, first.name, input_of(text)))
        elif isinstance(first, Reasoning):
            shown = ThinkingBlock(text, signature_of(text))
            made.append(ThinkingBlock("", sealed(text)) if seals else shown)
        else:
            made.append(TextBlock(text))
    return made


def _runs(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Yield the events of one block each."""
    run: list[Event] = []
    for event in events:
        if not (isinstance(event, CallStart) or event.text):
            continue
        if run and not _continues(run[0], event):
            yield run
            run = []
        run.append(event)
    if run:
        yield run


def _continues(first: Event, event: Event) -> bool:
    """Return whether an event belongs to the block that `first` began."""
    if isinstance(event, CallArguments):
        return True
    return not isinstance(event, CallStart) and type(first) is type(event)


def input_of(arguments: str) -> dict[str, Any]:
    """Return a call's arguments as an object; of a truncated call the complete part, by the reader
    that Anthropic's clients use for streams."""
    if not arguments.strip():
        return {}
    try:
        value = from_json(arguments, allow_partial=True)
    except ValueError:
        value = arguments
    return value if isinstance(value, dict) else {"arguments": value}


class MessageEvents:
    """EventShape of /v1/messages."""

    def __init__(self, answers: Answers, head: AnswerHead, *, with_usage: bool) -> None:
        """with_usage: ignored: a message always has its usage."""
        self._answers = answers
        self._head = head
        self._parsing = answers.shown.parsing
        self._seals = answers.shown.seals_reasoning
        self._parser = None if self._parsing is None else self._parsing.parser()
        self._open: type[Event] | None = None  # the kind of the block that is open
        self._index = -1  # of the newest block
        self._template: TextTemplate | None = None  # of its additions
        self._thought: list[str] = []

    def opening(self) -> bytes:
        message = Message(
            id=self._head.id,
            model=self._head.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=MessageUsage(
                input_tokens=self._answers.group.num_prompt_tokens[0], output_tokens=0
            ),
        )
        return frame(MessageStart(message)) + frame(Ping())

    def shows_as_is(self, index: int) -> bool:
        return self._open is Content and (self._parser is None or self._parser.passes_on)

    def text(self, index: int, text: str) -> bytes:
        return frame(BlockDelta(self._index, TextDelta(text)))

    def piece(self, index: int, piece: Piece) -> bytes:
        return b"".join(map(self._told, events_in(self._parser, piece)))

    def closing(self) -> bytes:
        called = self._parser is not None and self._parser.called
        stop = stop_of(self._answers, called=called)
        usage = usage_of(self._answers.usage())
        return self._end() + frame(MessageDelta(stop, usage)) + frame(MessageStop())

    def failure(self, error: Exception) -> bytes:
        return b"event: error\ndata: " + to_json(error_of(error)[1]) + b"\n\n"

    def _told(self, event: Event) -> bytes:
        if isinstance(event, CallStart):
            assert self._parsing is not None
            number = call_id(event, self._parsing, CALL_PREFIX)
            return self._begin(CallArguments, ToolUseBlock(number, event.name, {}))
        if not event.text:
            return b""
        begun = b""
        if type(event) is not self._open and not isinstance(event, CallArguments):
            empty = ThinkingBlock("", "") if isinstance(event, Reasoning) else TextBlock("")
            begun = self._begin(type(event), empty)
        return begun + self._added(event)

    def _begin(self, kind: type[Event], block: Block) -> bytes:
        ended = self._end()
        self._open, self._template = kind, None
        self._index += 1
        return ended + frame(BlockStart(self._index, block))

    def _added(self, event: Content | Reasoning | CallArguments) -> bytes:
        if isinstance(event, Reasoning):
            self._thought.append(event.text)
            if self._seals:
                return b""
        if self._template is None:
            self._template = TextTemplate(
                lambda text: frame(BlockDelta(self._index, _delta(event, text)))
            )
        return self._template.fill(event.text)

    def _end(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open is Reasoning:
            text = "".join(self._thought)
            self._thought.clear()
            signature = sealed(text) if self._seals else signature_of(text)
            signed = frame(BlockDelta(self._index, SignatureDelta(signature)))
        self._open = None
        return signed + frame(BlockStop(self._index))


def _delta(event: Event, text: str) -> TextDelta | ThinkingDelta | InputDelta:
    if isinstance(event, Reasoning):
        return ThinkingDelta(text)
    return InputDelta(text) if isinstance(event, CallArguments) else TextDelta(text)


def frame(event: StreamEvent) -> bytes:
    """Encode one event of a stream, with its name."""
    name = str(event.__struct_config__.tag)
    return b"event: %b\ndata: %b\n\n" % (name.encode(), to_json(event))
