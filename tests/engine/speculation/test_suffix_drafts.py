"""Suffix decoding on the host: against a search that a reader can follow, bounds, and scopes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from atom.speculation.suffix import suffix_drafter, token_index
from atom.speculation.suffix.answer_store import AnswerStore
from atom.speculation.suffix.suffix_drafter import MOST_INDEXED, MOST_SEARCHES, SuffixDrafter
from atom.speculation.suffix.token_index import MOST_CANDIDATES, SEPARATOR, TokenIndex
from atom.speculative_config import SuffixOptions


def tokens_of(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def index_of(text: Sequence[int], draw: random.Random | None = None) -> TokenIndex:
    """An index of a text, appended in pieces if they are drawn."""
    index, rest = TokenIndex(), list(text)
    while rest:
        count = len(rest) if draw is None else draw.randrange(1, 9)
        index.append(tokens_of(rest[:count]))
        rest = rest[count:]
    return index


def searched(text: Sequence[int], tail: Sequence[int]) -> tuple[int, list[int]]:
    """The most tokens of the tail's end that occur in the text before another token, and where
    these tokens are, the newest first."""
    for length in range(len(tail), 0, -1):
        ended = [
            at
            for at in range(len(text) - 1, length - 1, -1)
            if list(text[at - length : at]) == list(tail[-length:]) and text[at] != SEPARATOR
        ]
        if ended:
            return length, ended
    return 0, []


@pytest.mark.parametrize("seed", range(60))
def test_the_longest_occurrences_are_found(seed: int) -> None:
    draw = random.Random(seed)
    kinds = 40 + seed  # so few occurrences of each that none is left out
    text = [draw.randrange(kinds) for _ in range(draw.randrange(1, 300))]
    for _ in range(draw.randrange(4)):  # what was said before
        start = draw.randrange(len(text))
        text += text[start : start + draw.randrange(1, 60)]
        text += [SEPARATOR] * draw.randrange(2)
    index = index_of(text, draw)
    for _ in range(40):
        start = draw.randrange(len(text))
        tail = text[start : start + draw.randrange(1, 40)]
        if SEPARATOR in tail:
            continue
        matched, ended = searched(text, tail)
        found = index.find(tail)
        if not matched:
            assert found is None
        elif len(ended) < MOST_CANDIDATES // 2:
            assert found is not None
            assert (found.matched, found.behind.tolist()) == (matched, ended)


@pytest.mark.parametrize("seed", range(20))
def test_dropped_tokens_are_found_no_more(seed: int) -> None:
    draw = random.Random(seed)
    index, kept = TokenIndex(), []
    for _ in range(60):
        new = [draw.randrange(200) for _ in range(draw.randrange(1, 120))]
        index.append(tokens_of(new))
        kept += new
        dropped = draw.randrange(min(len(kept), 130))
        index.drop_first(dropped)
        kept = kept[dropped:]
        assert len(index) == len(kept)
        assert index.capacity <= max(256, 4 * len(kept))
        tail = [draw.randrange(200) for _ in range(3)] if not kept else kept[:20]
        matched, ended = searched(kept, tail)
        found = index.find(tail)
        assert (matched, ended) == (0, []) if found is None else found.matched == matched


class CountingChain(np.ndarray):
    """A chain that counts the links that are followed."""

    followed = 0

    def __getitem__(self, at: object) -> object:
        if isinstance(at, int):
            CountingChain.followed += 1
        return super().__getitem__(at)  # type: ignore[index]


@pytest.mark.parametrize("text", [[7] * 20_000, [1, 2] * 10_000, [*range(16)] * 1_000])
def test_a_hostile_text_takes_no_more_steps_than_another(text: list[int]) -> None:
    index = index_of(text)
    index._earlier = index._earlier.view(CountingChain)
    CountingChain.followed = 0
    assert index.find(text[-24:]) is not None
    assert 0 < CountingChain.followed <= 3 * MOST_CANDIDATES


def test_a_step_indexes_and_searches_a_bounded_amount() -> None:
    drafter = SuffixDrafter(SuffixOptions())
    texts = [tokens_of([7] * 3 * MOST_INDEXED) for _ in range(2)]
    for slot, _ in enumerate(texts):
        drafter.enter(slot, 0)
    steps_until = []
    for step in range(1, 9):
        for slot in drafter.begin_step(len(texts)):
            if drafter.foretell(slot, texts[slot], 4, 0) == [7] * 4 and slot not in steps_until:
                steps_until.append(slot)
        assert sum(row.indexed for row in drafter._rows.values()) <= step * MOST_INDEXED
    assert steps_until == [0, 1]  # the second waits for the first, and not for ever


def test_each_of_many_rows_has_its_turn() -> None:
    drafter = SuffixDrafter(SuffixOptions())
    rows = 3 * MOST_SEARCHES + 5
    turns: Counter[int] = Counter()
    for _ in range(8):
        chosen = drafter.begin_step(rows)
        assert len(chosen) == len(set(chosen)) == MOST_SEARCHES
        turns.update(chosen)
    assert set(turns) == set(range(rows))


def drafts(
    drafter: SuffixDrafter,
    text: Sequence[int],
    wanted: int = 8,
    *,
    scope: int = 0,
    unknown: int = 0,
) -> list[int]:
    """The drafts of a new row with this text."""
    drafter.enter(0, scope)
    drafter.begin_step(1)
    return drafter.foretell(0, tokens_of(text), wanted, unknown)


def answer(drafter: SuffixDrafter, prompt: list[int], said: list[int], scope: int = 0) -> None:
    """Let a row of a scope end with this answer."""
    drafter.enter(1, scope)
    drafter.end(1, tokens_of(prompt + said), len(prompt))


def test_the_draft_is_no_longer_than_the_match_by_its_factor() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert drafts(SuffixDrafter(SuffixOptions()), text) == [4, 5, 6]
    doubled = SuffixDrafter(SuffixOptions(max_spec_factor=2.0))
    assert drafts(doubled, text) == [4, 5, 6, 7, 8, 9]
    assert drafts(doubled, text, wanted=2) == [4, 5]


def test_a_period_goes_on_in_the_drafts() -> None:
    assert drafts(SuffixDrafter(SuffixOptions()), [5, *[1, 2, 3] * 3]) == [1, 2, 3, 1, 2, 3]


def test_the_most_frequent_continuation_is_drafted_while_it_is_probable() -> None:
    continued = [[4, 5], [4, 6], [4, 5], [8, 8], [4, 7]]
    said = [token for each in continued for token in (1, 2, 3, *each)]
    for least, expected in ((0.3, [4, 5]), (0.5, [4]), (0.9, [])):
        drafter = SuffixDrafter(SuffixOptions(min_token_prob=least))
        answer(drafter, [], said)
        assert drafts(drafter, [9, 1, 2, 3], wanted=2) == expected


def test_an_answer_is_drafted_from_its_first_token_on() -> None:
    drafter, prompt = SuffixDrafter(SuffixOptions()), list(range(100, 140))
    assert drafts(drafter, prompt) == []
    answer(drafter, prompt, [1, 2, 3, 4, 5])
    assert drafts(drafter, prompt, wanted=3) == [1, 2, 3]
    assert drafts(drafter, [*prompt, 1, 2], wanted=8) == [3, 4, 5]  # and no text of another


def test_the_longer_match_wins() -> None:
    drafter = SuffixDrafter(SuffixOptions())
    answer(drafter, [], [1, 2, 3, 40, 41])
    assert drafts(drafter, [3, 50, 51, 1, 2, 3], wanted=1) == [40]
    assert drafts(drafter, [1, 2, 3, 60, 0, 1, 2, 3], wanted=1) == [60]  # equal: its own text


def test_tokens_that_are_on_their_way_are_foretold_too() -> None:
    drafter = SuffixDrafter(SuffixOptions())
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    assert drafts(drafter, text, wanted=2, unknown=3) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("other", [(0, 1), ("", "tenant"), (hash("a"), hash("b"))])
def test_no_scope_drafts_what_another_was_answered(other: tuple[int, int]) -> None:
    drafter = SuffixDrafter(SuffixOptions())
    answer(drafter, [1, 2, 3], [4, 5, 6, 7], scope=other[0])
    assert drafts(drafter, [1, 2, 3], scope=other[1]) == []
    assert drafts(drafter, [1, 2, 3], scope=other[0]) == [4, 5, 6]


@pytest.mark.parametrize("seed", range(6))
def test_the_store_keeps_the_newest_answers_within_its_bounds(seed: int) -> None:
    draw = random.Random(seed)
    most_answers, most_tokens = draw.randrange(1, 20), draw.randrange(20, 400)
    store = AnswerStore(most_answers, most_tokens)
    said: list[tuple[int, list[int]]] = []
    for number in range(80):
        scope = draw.randrange(3)
        text = [number * 100 + at for at in range(draw.randrange(2, 60))]
        store.add(scope, tokens_of(text))
        said.append((scope, text[-(most_tokens - 1) :]))
        assert len(store) <= most_answers
        assert store.num_tokens <= most_tokens
        held = 0
        for place, (owner, kept) in enumerate(reversed(said)):
            index = store.index_of(owner)
            found = index is not None and index.find([kept[0]]) is not None
            held += found
            assert found == (place < len(store)), "the newest are kept, and no other"
        assert held == len(store)
        memory = sum(each.capacity for each in store._indexes.values())
        assert memory <= 4 * most_tokens + 256 * 3


def test_no_answer_is_kept_if_none_may_be() -> None:
    drafter = SuffixDrafter(SuffixOptions(max_cached_requests=0))
    answer(drafter, [1, 2, 3], [4, 5])
    assert drafts(drafter, [1, 2, 3]) == []


def test_cleared_answers_are_drafted_no_more() -> None:
    drafter = SuffixDrafter(SuffixOptions())
    answer(drafter, [1, 2, 3], [4, 5])
    drafter.answers.clear()
    assert (len(drafter.answers), drafter.answers.num_tokens) == (0, 0)
    assert drafts(drafter, [1, 2, 3]) == []


def test_positions_begin_anew_before_their_numbers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_index, "_LAST_POSITION", 1_000)
    index = TokenIndex()
    for number in range(50):
        index.append(tokens_of([number, *range(100, 140)]))
        index.drop_first(max(0, len(index) - 200))
        assert index._end <= 1_000
        found = index.find([number, 100])
        assert found is not None
        assert found.matched == 2


def test_a_row_outgrows_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_drafter, "_ROOM", 0)
    drafter, text = SuffixDrafter(SuffixOptions()), list(range(250)) * 3
    drafter.enter(0, 0)
    for known in range(252, len(text), 3):
        drafter.begin_step(1)
        assert (
            drafter.foretell(0, tokens_of(text[:known]), 2, 0)
            == text[known : known + 2][: known - 250]
        )
