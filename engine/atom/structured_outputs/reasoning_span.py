"""ReasoningSpan: the place of the reasoning in an answer's text.

A value that crosses the wire as part of SamplingParams. Limits of the answer, such as stop strings,
apply to the text outside of the span (`answer_parsing.spoken_text`).
"""

from __future__ import annotations

import msgspec


class ReasoningSpan(msgspec.Struct, frozen=True):
    """Marks around the reasoning. opened: the answer begins within; else it may begin with the
    opening mark. Without marks the answer is written in channels; spoken: it begins within the
    message for the user."""

    opened: bool
    opening: str = ""
    closing: str = ""
    spoken: bool = False
