"""ThinkingBudget: how many tokens an answer may reason before its reasoning is ended.

A value that crosses the wire as part of SamplingParams;
`model_engine.structured_output.thinking_rows` enforces it.
"""

from __future__ import annotations

import msgspec

from atom.errors import RequestError
from atom.structured_outputs.mark_spellings import MarkSpellings


class ThinkingBudget(msgspec.Struct, frozen=True):
    """A bound on the tokens of an answer's reasoning. tokens: of reasoning, without its marks.
    opened: the prompt ends with the opening mark, so the answer begins within the reasoning; else
    it may begin with the mark. opening, closing: the marks' tokens. then: tokens that are forced
    after the closing mark if the budget is spent, and excluded: a token that may not follow them.
    reopens: reasoning may begin again later, within the same budget. opening_text, closing_text:
    other token spellings of the marks; None if there is only one."""

    tokens: int
    opened: bool
    opening: tuple[int, ...]
    closing: tuple[int, ...]
    then: tuple[int, ...] = ()
    excluded: int | None = None
    reopens: bool = False
    opening_text: MarkSpellings | None = None
    closing_text: MarkSpellings | None = None

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise RequestError(
                f"thinking_token_budget must be at least 0 (or -1 for no bound), got {self.tokens}",
                param="thinking_token_budget",
            )
