"""Reasoning within its budget: the closing mark is forced in time, however a sequence gets on."""

from __future__ import annotations

import numpy as np
import pytest

from atom.errors import RequestError
from atom.model_engine.batch import TokenMask
from atom.model_engine.structured_output.thinking_rows import ThinkingRows
from atom.structured_outputs.mark_spellings import MarkSpellings, spellings_of
from atom.structured_outputs.thinking_budget import ThinkingBudget
from tests.support.structured_output.guided_sequences import batch_of

VOCABULARY = 70
WORDS = 3
OPENING = (7,)
NOTHING = TokenMask(np.zeros(0, dtype=np.int32), np.zeros((0, WORDS), dtype=np.int32))


def budget(tokens: int, *, opened: bool = True, closing: tuple[int, ...] = (8,)) -> ThinkingBudget:
    return ThinkingBudget(tokens, opened, OPENING, closing)


def allowed_of(mask: TokenMask, row: int) -> list[int] | None:
    """The tokens that a row may get; None for all."""
    if row not in mask.rows.tolist():
        return None
    bits = mask.bits[mask.rows.tolist().index(row)].view(np.uint32)
    return [token for token in range(VOCABULARY) if bits[token >> 5] >> (token & 31) & 1]


def answer(asked: ThinkingBudget, wanted: list[int], *, lag: int) -> list[int]:
    """The tokens of a sequence that would get `wanted`. lag: steps whose tokens are in flight while
    the next one is planned, unless that step is to be confined."""
    rows = ThinkingRows(VOCABULARY)
    rows.enter(1, asked)
    tokens: list[int] = []
    known = 0
    for token in wanted:
        batch = batch_of(1)
        if rows.holds_any(batch):
            rows.accept([(1, [each]) for each in tokens[known:]])
            known = len(tokens)
            forced = allowed_of(rows.confine(batch, NOTHING, ())[0], 0)
            tokens.append(token if forced is None else forced[0])
        else:
            tokens.append(token)
            while known < len(tokens) - lag:
                rows.accept([(1, [tokens[known]])])
                known += 1
    return tokens


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("closing", [(8,), (8, 9), (8, 8, 9), (8, 9, 8, 10)])
def test_reasoning_ends_within_its_budget_and_the_answer_is_free(
    closing: tuple[int, ...], lag: int
) -> None:
    random = np.random.default_rng(0)
    for tokens in (0, 1, 2, 3, 7, 20):
        for opened in (True, False):
            for _ in range(20):
                wanted = random.choice([1, 2, 8, 9, 10], size=60).tolist()
                if not opened:
                    wanted[0] = OPENING[0]
                found = answer(budget(tokens, opened=opened, closing=closing), wanted, lag=lag)
                within = found if opened else found[1:]
                ends = [
                    end
                    for end in range(len(closing), len(within) + 1)
                    if tuple(within[end - len(closing) : end]) == closing
                ]
                assert ends
                assert ends[0] - len(closing) <= tokens
                behind = len(found) - len(within) + ends[0]
                assert found[behind:] == wanted[behind:]


@pytest.mark.parametrize("lag", [0, 1])
def test_reasoning_that_ends_by_itself_is_left_alone(lag: int) -> None:
    wanted = [1, 2, 8, 9, 3, 4, 5, 6, 1, 2, 3]
    assert answer(budget(5, closing=(8, 9)), wanted, lag=lag) == wanted
    assert answer(budget(2, closing=(8, 9)), wanted, lag=lag) == wanted


def test_an_answer_that_does_not_reason_is_left_alone() -> None:
    wanted = [1] * 40
    assert answer(budget(0, opened=False), wanted, lag=1) == wanted


def test_a_mark_that_has_begun_when_the_budget_is_spent_is_completed() -> None:
    assert answer(budget(3, closing=(8, 9, 10)), [1, 2, 8, 9, 5, 5, 5, 5], lag=0) == [
        1, 2, 8, 9, 10, 5, 5, 5,
    ]  # fmt: skip


def test_rows_of_others_keep_their_masks_and_a_grammar_goes_first() -> None:
    rows = ThinkingRows(VOCABULARY)
    for number in (2, 4, 6):
        rows.enter(number, budget(0))
    free = np.full(WORDS, -1, dtype=np.int32)
    without = free.copy()
    without[0] = ~(1 << 8)
    grammar = TokenMask(np.array([0, 1, 3], dtype=np.int32), np.stack([free, free, without]))
    batch = batch_of(1, 2, 4, 6)
    mask, _ = rows.confine(batch, grammar, ())
    assert mask.rows.tolist() == [0, 1, 2, 3]
    assert [allowed_of(mask, row) for row in (1, 2)] == [[8], [8]]
    assert (mask.bits[0] == free).all()
    assert (mask.bits[3] == without).all()
    assert rows.confine(batch, grammar, (2, 4))[0].rows.tolist() == [0, 1, 3]
    rows.leave([2, 4, 6, 9])
    assert rows.confine(batch, grammar, ())[0] is grammar
    assert not len(rows)


def test_a_row_is_forgotten_behind_its_mark() -> None:
    rows = ThinkingRows(VOCABULARY)
    rows.enter(1, budget(4))
    rows.accept([(1, [1, 8]), (5, [1])])
    assert not len(rows)


# As harmony's are: reasoning may begin again, and what follows it stands in another message.
CHANNELS = ThinkingBudget(
    3, False, (20, 21, 22), (23,), then=(24, 25, 20), excluded=21, reopens=True
)


@pytest.mark.parametrize("lag", [0, 1])
def test_reasoning_in_channels_ends_within_its_budget_and_another_channel_follows(lag: int) -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        wanted = random.choice([1, 20, 21, 22, 23, 24, 25, 30], size=60).tolist()
        found = answer(CHANNELS, [20, 21, 22, *wanted], lag=lag)
        spent, within = 0, False
        for place, token in enumerate(found):
            if not within:
                within = found[max(0, place - 2) : place + 1] == [20, 21, 22]
                continue
            if token == 23:
                within = False
                follows = found[place + 1 : place + 5]
                if spent >= 3 and len(follows) == 4:
                    assert follows[:3] == [24, 25, 20]
                    assert follows[3] != 21
            else:
                spent += 1
        assert spent <= 3 + sum(token == 23 for token in found)


def test_what_follows_reasoning_may_be_forced_to_its_end() -> None:
    asked = ThinkingBudget(2, True, (20, 21, 22), (23,), then=(24, 25), reopens=True)
    assert answer(asked, [1] * 8, lag=1) == [1, 1, 23, 24, 25, 1, 1, 1]
    assert answer(asked, [1, 23, 1, 20, 21, 22, 1, 1, 1, 1, 9], lag=0) == [
        1, 23, 1, 20, 21, 22, 1, 23, 24, 25, 9,
    ]  # fmt: skip


def test_a_budget_below_nothing_is_refused() -> None:
    with pytest.raises(RequestError, match="at least 0"):
        budget(-2)


# A vocabulary in which marks have many spellings: special tokens first, which are no text.
TEXTS = [b"\xff0", b"\xff1", b"<", b"</", b"th", b"ink", b"think", b">", b">:", b" <", b"\n", b"a",
         b"t", b"h", b"i", b"n", b"k", b"/", b"a<", b"</th", b"ink>\n", b"<a"]  # fmt: skip
TEXT_OF = dict(enumerate(text.decode("latin-1") for text in TEXTS))


def spellings(mark: str, whole: int, *, at_start: bool) -> MarkSpellings:
    return spellings_of(mark.encode(), TEXTS, [whole], at_start=at_start)


def spelled(tokens: list[int]) -> str:
    return "".join(TEXT_OF[token] for token in tokens)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_mark_counts_by_its_text_whatever_tokens_spell_it(lag: int) -> None:
    random = np.random.default_rng(3)
    pieces = [
        [token for token in TEXT_OF if TEXT_OF[token] and TEXT_OF[token][0] == sign]
        for sign in "<think>"
    ]
    for tokens in (0, 1, 8):
        asked = ThinkingBudget(
            tokens, False, (0,), (1,),
            opening_text=spellings("<think>", 0, at_start=True),
            closing_text=spellings("</think>", 1, at_start=False),
        )  # fmt: skip
        for _ in range(100):
            opening: list[int] = [10] * int(random.integers(0, 3))
            while "<think>" not in spelled(opening):
                left = "<think>"[len(spelled(opening).lstrip("\n")) :]
                fitting = [
                    token for token in pieces[len("<think>") - len(left)]
                    if left.startswith(TEXT_OF[token]) or TEXT_OF[token].startswith(left)
                ]  # fmt: skip
                opening.append(int(random.choice(fitting)))
            wanted = [*opening, *([11] * 30)]
            found = answer(asked, wanted, lag=lag)
            assert found[: len(opening) + tokens] == wanted[: len(opening) + tokens]
            assert found[len(opening) + tokens] == 1
            assert found[len(opening) + tokens + 1 :] == [11] * (29 - tokens)


def test_a_closing_mark_in_other_tokens_ends_the_reasoning() -> None:
    asked = ThinkingBudget(
        9, True, (0,), (1,), closing_text=spellings("</think>", 1, at_start=False)
    )
    wanted = [11, 18, 17, 4, 20, *[11] * 20]  # a, a<, /, th, ink>
    assert answer(asked, wanted, lag=0) == wanted


def test_an_answer_that_begins_with_text_does_not_reason() -> None:
    asked = ThinkingBudget(
        0, False, (0,), (1,),
        opening_text=spellings("<think>", 0, at_start=True),
        closing_text=spellings("</think>", 1, at_start=False),
    )  # fmt: skip
    wanted = [11, 2, 6, 7, *[11] * 20]  # a<think>
    assert answer(asked, wanted, lag=0) == wanted
