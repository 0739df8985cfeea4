"""ThinkingBudget: how many tokens an answer may reason before it is made to come to its end.

A value that crosses the wire as part of SamplingParams; what follows it is
`model_engine.structured_output.thinking_rows`.
"""

from __future__ import annotations

import msgspec

from atom.errors import RequestError
from atom.structured_outputs.mark_spellings import MarkSpellings


class ThinkingBudget(msgspec.Struct, frozen=True):
    """Bounds the tokens of an answer's reasoning. tokens: of reasoning, its marks aside. opened:
    the prompt ends with the opening mark, so that the answer begins within; else it may begin with
    the mark. opening, closing: the marks' tokens. then: what is forced behind the closing mark
    where the budget is spent, and excluded: a token that may not follow that. reopens: reasoning
    may begin again later, within the same budget. opening_text, closing_text: the marks as a model
    may spell them in other tokens; None where it has one way to write them."""

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
