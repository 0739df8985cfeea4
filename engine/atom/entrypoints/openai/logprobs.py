"""Log-probabilities in the shapes of the API: chat's, completions', and vLLM's for prompts.

`LogprobFeed` puts a request's entries beside the text that shows them; the rest is pure shape. The
names of tokens come from the model's tokenizer; bytes that make no text by themselves are named
`bytes:\\xe2\\x80`, as OpenAI does. No engine, no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from atom.model_engine.request import RequestOutput, TokenLogprobs
from atom.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0  # for "impossible": JSON has no infinity
_STOP_STRING = "stop_sequence"


class TopLogprob(msgspec.Struct, frozen=True):
    token: Annotated[str, Meta(description="The token's text.")]
    logprob: Annotated[float, Meta(description="Its log-probability.")]
    bytes: Annotated[list[int], Meta(description="The text in UTF-8.")]


class ChatLogprob(msgspec.Struct, frozen=True):
    token: Annotated[str, Meta(description="The token's text.")]
    logprob: Annotated[float, Meta(description="Its log-probability.")]
    bytes: Annotated[list[int], Meta(description="The text in UTF-8.")]
    top_logprobs: Annotated[
        list[TopLogprob], Meta(description="The likeliest tokens at this place.")
    ]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """OpenAI's shape for chat."""

    content: Annotated[
        list[ChatLogprob], Meta(description="One entry for each token of the answer.")
    ]
    refusal: Annotated[None, Meta(description="Always null.")] = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """OpenAI's shape for completions: columns. The prompt's first token has no probability."""

    text_offset: Annotated[
        list[int], Meta(description="Where each token begins in the text, in characters.")
    ]
    token_logprobs: Annotated[list[float | None], Meta(description="Each token's log-probability.")]
    tokens: Annotated[list[str], Meta(description="Each token's text.")]
    top_logprobs: Annotated[
        list[dict[str, float] | None], Meta(description="The likeliest tokens at each place.")
    ]


class PromptLogprob(msgspec.Struct, frozen=True):
    logprob: Annotated[float, Meta(description="The token's log-probability.")]
    rank: Annotated[int, Meta(description="Its place among all tokens there, from 1.")]
    decoded_token: Annotated[str, Meta(description="The token's text.")]


# One object per prompt token, by token id: the token itself and the most likely ones.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


@dataclass(frozen=True, slots=True)
class PlacedLogprobs:
    """A token beside the text. offset: characters before it. entry: None for a prompt's first."""

    token_id: int
    offset: int
    entry: TokenLogprobs | None


class TokenNames:
    """Names tokens by their texts. tokenizer: None names them by their ids."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, list[int]]] = {}

    def of(self, token_id: int) -> tuple[str, list[int]]:
        """Look up a token's (name, bytes)."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._look_up(token_id)
        return known

    def _look_up(self, token_id: int) -> tuple[str, list[int]]:
        if self._tokenizer is None:
            return f"token_id:{token_id}", []
        data = self._tokenizer.spelling(token_id)
        try:
            return data.decode(), list(data)
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data), list(data)


class LogprobFeed:
    """Collect the entries of one choice as its text arrives.

    With `holds_back` (stop strings) an entry waits until its text has been shown, so that its
    tokens reveal no part of a stop string either.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        holds_back: bool,
        shown_characters: int = 0,
        skip_special_tokens: bool = True,
        shown_special_ids: Sequence[int] = (),
    ) -> None:
        """shown_characters: of the text that stands before the answer."""
        self._stream = None
        if tokenizer is not None:
            self._stream = tokenizer.stream(
                skip_special_tokens=skip_special_tokens, shown_ids=shown_special_ids
            )
        self._holds_back = holds_back
        self._characters = self._shown = shown_characters
        self._waiting: list[PlacedLogprobs] = []

    def take(self, output: RequestOutput) -> list[PlacedLogprobs]:
        """Return the entries that may be shown together with this output's text."""
        self._shown += len(output.text)
        for entry in output.logprobs or ():
            self._waiting.append(PlacedLogprobs(entry.token_id, self._characters, entry))
            if self._stream is not None:
                self._characters += len(self._stream.push(entry.token_id))
        found, self._waiting = self._waiting, []
        complete = output.finished and output.finish_detail != _STOP_STRING
        if self._holds_back and not complete:
            self._waiting = [placed for placed in found if placed.offset >= self._shown]
            found = [placed for placed in found if placed.offset < self._shown]
        return found


def place_prompt(
    token_ids: Sequence[int],
    entries: Sequence[TokenLogprobs | None],
    tokenizer: Tokenizer | None,
) -> list[PlacedLogprobs]:
    """Return the tokens of an echoed prompt beside its text."""
    stream = None if tokenizer is None else tokenizer.stream()
    placed, characters = [], 0
    for token_id, entry in zip(token_ids, entries, strict=True):
        placed.append(PlacedLogprobs(token_id, characters, entry))
        if stream is not None:
            characters += len(stream.push(token_id))
    return placed


def chat_logprobs(placed: Sequence[PlacedLogprobs], names: TokenNames) -> ChatLogprobs:
    content = []
    for item in placed:
        assert item.entry is not None  # a chat shows no prompt
        top = [
            TopLogprob(names.of(token)[0], _finite(value), names.of(token)[1])
            for token, value in item.entry.top_logprobs
        ]
        name, data = names.of(item.token_id)
        content.append(ChatLogprob(name, _finite(item.entry.logprob), data, top))
    return ChatLogprobs(content)


def text_logprobs(placed: Sequence[PlacedLogprobs], names: TokenNames) -> TextLogprobs:
    entries = [item.entry for item in placed]
    return TextLogprobs(
        text_offset=[item.offset for item in placed],
        token_logprobs=[None if entry is None else _finite(entry.logprob) for entry in entries],
        tokens=[names.of(item.token_id)[0] for item in placed],
        top_logprobs=[None if entry is None else _top_by_name(entry, names) for entry in entries],
    )


def prompt_logprobs(entries: Sequence[TokenLogprobs | None], names: TokenNames) -> PromptLogprobs:
    return [None if entry is None else _top_by_id(entry, names) for entry in entries]


def _top_by_name(entry: TokenLogprobs, names: TokenNames) -> dict[str, float]:
    """Return the most likely tokens, and the chosen one if it is not among them."""
    found: dict[str, float] = {}
    for token, value in (*entry.top_logprobs, (entry.token_id, entry.logprob)):
        found.setdefault(names.of(token)[0], _finite(value))
    return found


def _top_by_id(entry: TokenLogprobs, names: TokenNames) -> dict[str, PromptLogprob]:
    found = {
        str(entry.token_id): PromptLogprob(
            _finite(entry.logprob), entry.rank, names.of(entry.token_id)[0]
        )
    }
    for index, (token, value) in enumerate(entry.top_logprobs):
        found.setdefault(str(token), PromptLogprob(_finite(value), index + 1, names.of(token)[0]))
    return found


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
