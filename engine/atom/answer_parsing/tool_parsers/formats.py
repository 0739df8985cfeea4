"""How a family writes calls and reasoning: the rows of the table (table.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from atom.answer_parsing.events import CallParser
from atom.answer_parsing.notation import CallNotation
from atom.answer_parsing.reasoning_parser import THINK, ReasoningMarks
from atom.answer_parsing.tools import Tools

AUTO = "auto"
NONE = "none"


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A family's format of calls. parser: makes one for an answer to a request with these tools.
    mark: the beginning of every call, or of all of them together, "" if calls are bare objects.
    marks: those that may be special tokens. id_chars: letters and digits of an id; 0 for any id."""

    name: str
    notation: CallNotation
    parser: Callable[[Tools], CallParser]
    mark: str = ""
    marks: tuple[str, ...] = ()
    id_chars: int = 0


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """A family's format of reasoning. always: the model reasons although its template does not
    indicate it. marks: around the reasoning; None if it is written in a channel."""

    name: str
    always: bool = False
    marks: ReasoningMarks | None = THINK


@dataclass(frozen=True, slots=True)
class AddedTokens:
    """The tokens that a vocabulary has besides the learned ones. special: by id, the tokens that
    are not text."""

    texts: frozenset[str] = frozenset()
    special: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """The formats of a model's answers. None: the family is not known, or is not to be parsed.
    special_ids: their marks that are special tokens."""

    calls: CallFormat | None = None
    reasoning: ReasoningFormat | None = None
    special_ids: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        calls = NONE if self.calls is None else self.calls.name
        reasoning = NONE if self.reasoning is None else self.reasoning.name
        return f"tool call parser {calls}, reasoning parser {reasoning}"
