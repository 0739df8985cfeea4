"""Log-probabilities beside the text that shows them, and in the shapes of the API."""

from __future__ import annotations

import pytest

from atom.entrypoints.openai.logprobs import (
    LEAST_LOGPROB,
    LogprobFeed,
    PlacedLogprobs,
    TokenNames,
    chat_logprobs,
    place_prompt,
    prompt_logprobs,
    text_logprobs,
)
from atom.model_engine.request import FinishReason, RequestOutput, TokenLogprobs
from atom.tokenizer import Tokenizer
from tests.support.models.byte_tokenizer import TURN_END, write_byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    return Tokenizer(folder)


def output(
    tokens: list[int], text: str, detail: str | None = None, reason: FinishReason | None = None
) -> RequestOutput:
    entries = [TokenLogprobs(token, -0.5, 1, ((token, -0.5),)) for token in tokens]
    finished = reason is not None
    return RequestOutput(
        "r", tokens, text, finished, reason, detail, 1, len(tokens), 0, logprobs=entries
    )


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def test_offsets_count_characters_of_the_text(tokenizer: Tokenizer) -> None:
    tokens = ids(tokenizer, "hello é the")
    feed = LogprobFeed(tokenizer, holds_back=False, shown_characters=10)
    placed = [item for token in tokens for item in feed.take(output([token], ""))]
    # A character belongs to the token that completes it: the second byte of é.
    shown = [tokenizer.decode(tokens[:count]).rstrip("\ufffd") for count in range(len(tokens))]
    assert [item.offset for item in placed] == [10 + len(text) for text in shown]
    assert len({item.offset for item in placed}) == len(tokens) - 1


def test_what_a_stop_string_may_swallow_is_told_with_its_text_or_never(
    tokenizer: Tokenizer,
) -> None:
    a, b, c = ids(tokenizer, "a")[0], ids(tokenizer, "b")[0], ids(tokenizer, "c")[0]
    feed = LogprobFeed(tokenizer, holds_back=True)
    assert [item.token_id for item in feed.take(output([a], "a"))] == [a]
    assert feed.take(output([b], "")) == []  # "b" may begin the stop string "bc"
    assert [item.token_id for item in feed.take(output([a], "ba"))] == [b, a]
    assert feed.take(output([b], "")) == []
    assert feed.take(output([c], "", "stop_sequence", FinishReason.STOP)) == []


def test_at_a_normal_end_everything_held_back_is_told(tokenizer: Tokenizer) -> None:
    (b,) = ids(tokenizer, "b")
    feed = LogprobFeed(tokenizer, holds_back=True)
    feed.take(output([b], ""))
    end = feed.take(output([b], "bb", "max_tokens", FinishReason.LENGTH))
    assert [item.offset for item in end] == [0, 1]


def test_tokens_that_are_no_text_are_named_by_their_bytes(tokenizer: Tokenizer) -> None:
    names = TokenNames(tokenizer)
    half = ids(tokenizer, "é")[0]
    assert names.of(half) == ("bytes:\\xc3", [0xC3])
    end = tokenizer.encode(TURN_END, add_special_tokens=False)[0]
    assert names.of(end) == (TURN_END, list(TURN_END.encode()))
    assert names.of(10**6) == ("", [])
    assert TokenNames(None).of(7) == ("token_id:7", [])


def test_the_chosen_token_is_among_a_completions_likeliest(tokenizer: Tokenizer) -> None:
    a, b = ids(tokenizer, "a")[0], ids(tokenizer, "b")[0]
    entry = TokenLogprobs(a, -2.0, 2, ((b, -0.1),))
    shape = text_logprobs([PlacedLogprobs(a, 0, entry)], TokenNames(tokenizer))
    assert shape.top_logprobs == [{"b": -0.1, "a": -2.0}]
    assert shape.token_logprobs == [-2.0]
    chat = chat_logprobs([PlacedLogprobs(a, 0, entry)], TokenNames(tokenizer))
    assert [top.token for top in chat.content[0].top_logprobs] == ["b"]


def test_what_is_impossible_has_a_finite_number(tokenizer: Tokenizer) -> None:
    (a,) = ids(tokenizer, "a")
    entry = TokenLogprobs(a, float("-inf"), 5, ())
    shape = text_logprobs([PlacedLogprobs(a, 0, entry)], TokenNames(tokenizer))
    assert shape.token_logprobs == [LEAST_LOGPROB]


def test_a_prompts_first_token_has_no_probability(tokenizer: Tokenizer) -> None:
    tokens = ids(tokenizer, "hello the")
    entries = [None, *(TokenLogprobs(token, -1.0, 3, ((5, -0.2),)) for token in tokens[1:])]
    placed = place_prompt(tokens, entries, tokenizer)
    names = TokenNames(tokenizer)
    assert text_logprobs(placed, names).token_logprobs == [None] + [-1.0] * (len(tokens) - 1)
    spelled = [names.of(token)[0] for token in tokens]
    assert [item.offset for item in placed] == [
        len("".join(spelled[:count])) for count in range(len(tokens))
    ]
    first, second, *_ = prompt_logprobs(entries, names)
    assert first is None
    assert second is not None
    assert second[str(tokens[1])].rank == 3
    assert second["5"].rank == 1
