"""The text of one answer: the incomplete character, and the text that may become a stop string."""

from __future__ import annotations

from dataclasses import dataclass

from atom.model_engine.front.stop_strings import SpokenStops, StopMatcher
from atom.tokenizer import TokenStream


@dataclass(slots=True, eq=False)
class AnswerText:
    """Hold the state of an answer's text. min_tokens: stop strings are ignored among the first
    `min_tokens` tokens. shows_stop_token: the token that ends the answer is part of the text.
    stopped: a stop string ended the text, further tokens are not shown."""

    detokenizer: TokenStream
    matcher: StopMatcher | SpokenStops | None
    min_tokens: int
    shows_stop_token: bool
    stopped: bool = False

    @property
    def stop_string(self) -> str | None:
        """Return the stop string that ended the text, if one did."""
        return None if self.matcher is None else self.matcher.found

    def push(self, token_id: int, count: int) -> str:
        """Return the text that is certain with one more token, which is the `count`-th."""
        piece = self.detokenizer.push(token_id)
        return piece if self.matcher is None else self._match(self.matcher, piece, count)

    def flush(self, count: int) -> str:
        """Return the rest of the text after its last token, which is the `count`-th."""
        rest = self.detokenizer.flush()
        if self.matcher is None:
            return rest
        rest = self._match(self.matcher, rest, count)
        return rest if self.stopped else rest + self.matcher.flush()

    def _match(self, matcher: StopMatcher | SpokenStops, text: str, count: int) -> str:
        """Return the certain text that the newest token adds; a stop string that completes within
        the first `min_tokens` tokens does not end it."""
        if count > self.min_tokens:
            text, self.stopped = matcher.feed(text)
            return text
        return matcher.pass_over(text)
