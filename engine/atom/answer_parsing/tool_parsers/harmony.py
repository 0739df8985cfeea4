"""Answers of gpt-oss in OpenAI's harmony format: messages, each with a channel and a recipient.

    <|channel|>analysis<|message|>I ask.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>
    {"city": "Paris"}<|call|>

Messages of analysis and messages to the model's built-in tools (python, browser) are reasoning.
Messages of final, and of commentary without a recipient, are content. A message to a function is a
call. The recipient may come before the channel. A prompt ends after <|start|>assistant, or within a
message. https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from atom.answer_parsing.call_policy import known_name
from atom.answer_parsing.markup_parser import MarkupParser, Reading, TextEndedError
from atom.answer_parsing.reasoning_parser import ReasoningStart
from atom.answer_parsing.tools import Tools

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL, RETURN, CONSTRAIN = "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"
MARKS = (START, CHANNEL, MESSAGE, END, CALL, RETURN, CONSTRAIN)
FUNCTIONS = "functions."
ANALYSIS, FINAL = f"{CHANNEL}analysis{MESSAGE}", f"{CHANNEL}final{MESSAGE}"
ASSISTANT = f"{START}assistant"
_ENDS = (END, CALL, RETURN, START, CHANNEL)
_HEADS = (START, CHANNEL, MESSAGE, "to=")
_CUT = ("<", "to=")
_MOST_HEAD_CHARS = 512
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"(?:^|\s)to=([^\s<]+)")


class Within(Enum):
    HEAD = auto()
    ANALYSIS = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class _Head:
    channel: str = "final"
    recipient: str = ""


def channel_start(prompt: str) -> ReasoningStart:
    """Return the state of the answer at the prompt's end; OVER: the prompt ends within the
    content."""
    head = prompt.rpartition(START)[2]
    body = head.partition(MESSAGE)
    if not body[1]:
        return ReasoningStart.POSSIBLE
    channel = _CHANNEL.search(body[0])
    analysis = channel is not None and channel[1] == "analysis"
    return ReasoningStart.OPEN if analysis else ReasoningStart.OVER


class HarmonyParser(MarkupParser):
    """A `CallParser` of one answer. start: OPEN within a message of analysis, OVER within one of
    content, POSSIBLE before a head. calls: if false, messages to functions are content."""

    def __init__(self, tools: Tools, start: ReasoningStart, *, calls: bool = True) -> None:
        super().__init__(tools)
        self._start = start
        self._calls = calls
        self._told: set[Within] = set()  # the kinds of earlier messages
        self.within = Within.HEAD

    def _answer(self) -> Reading[None]:
        if self._start is ReasoningStart.OPEN:
            yield from self._body(_Head("analysis"))
        elif self._start is ReasoningStart.OVER:
            yield from self._body(_Head())
        while True:
            self.within = Within.HEAD
            head = yield from self._head()
            yield from self._body(head)

    def _head(self) -> Reading[_Head]:
        """Read a message's head: its channel and recipient. Text without a head is content."""
        try:
            yield from self._blanks()
            found = yield from self._one_of(*_HEADS)
            self._at -= len(found)
            written = None
            if found:
                written = yield from self._up_to(MESSAGE, most=_MOST_HEAD_CHARS)
        except TextEndedError:  # a head that is cut is no content
            self._behind_call = not self._text.strip() or self._text.lstrip().startswith(_CUT)
            raise
        if written is None:
            self._at = self._at + len(found) if found else 0
            self._decide()
            return _Head()
        self._decide()
        channel = _CHANNEL.search(written[0])
        return _Head(channel[1] if channel else "final", self._recipient(written[0]))

    def _recipient(self, head: str) -> str:
        for name in self._tools:
            if any(sign in name for sign in " <") and f"to={FUNCTIONS}{name}" in head:
                return FUNCTIONS + name
        found = _RECIPIENT.search(head.replace("<|", " <|"))
        return found[1] if found else ""

    def _body(self, head: _Head) -> Reading[None]:
        to_function = head.recipient.startswith(FUNCTIONS) or head.recipient in self._tools
        name = known_name(head.recipient.removeprefix(FUNCTIONS), self._tools)
        if name and self._calls:
            self.within = Within.OTHER
            if (yield from self._json_arguments(name, "", *_ENDS)):
                yield from self._pass_rest()
                self._behind_call = False
                return
            self._at = 0  # content
        analysis = head.channel == "analysis" or bool(head.recipient and not to_function)
        self.within = Within.ANALYSIS if analysis else Within.OTHER
        yield from self._text_body()

    def _text_body(self) -> Reading[None]:
        first = True
        while True:
            places = [at for mark in _ENDS if (at := self._text.find(mark)) >= 0]
            end = min(places, default=-1)
            certain = end if end >= 0 else len(self._text) - self._held()
            if certain > 0:
                self._tell(self._text[:certain], first=first)
                first = False
            self._at = certain
            self._decide()
            if end >= 0:
                yield from self._pass_end()
                return
            try:
                yield from self._more()
            except TextEndedError:
                self._tell(self._text, first=first)
                self._text = ""
                raise

    def _held(self) -> int:
        """Return the length of a partial mark at the end of the text."""
        start = self._text.rfind("<")
        part = self._text[start:] if start >= 0 else ""
        return len(part) if part and any(mark.startswith(part) for mark in _ENDS) else 0

    def _tell(self, text: str, *, first: bool) -> None:
        """Add text to the message; a line break joins it to an earlier message of its kind."""
        if not text:
            return
        text = "\n" + text if first and self.within in self._told else text
        self._told.add(self.within)
        if self.within is Within.ANALYSIS:
            self._found.reasoning(text)
        else:
            self._found.content(text)

    def _pass_rest(self) -> Reading[None]:
        """Skip the text between a call's arguments and the end of its message."""
        while True:
            places = [at for mark in _ENDS if (at := self._text.find(mark)) >= 0]
            if places:
                self._at = min(places)
                yield from self._pass_end()
                return
            self._at = len(self._text) - self._held()
            self._decide()
            yield from self._more()

    def _pass_end(self) -> Reading[None]:
        """Skip the mark that ends a message, but not one that begins the next."""
        yield from self._one_of(END, CALL, RETURN)
        self._decide()


class ChannelCounter:
    """Counts the tokens of an answer's messages of analysis, with their marks."""

    over = False

    def __init__(self, start: ReasoningStart) -> None:
        self._parser = HarmonyParser({}, start, calls=False)
        self._within = self._parser.within
        self._pending = 0  # of a head
        self.total = 0

    def add(self, text: str) -> None:
        """Count by the text of one more token."""
        before = self._parser.within
        self._parser.feed(text)
        within = self._parser.within
        if Within.ANALYSIS in (before, within):
            self.total += 1 + (self._pending if within is Within.ANALYSIS else 0)
            self._pending = 0
        else:
            self._pending = self._pending + 1 if within is Within.HEAD else 0
