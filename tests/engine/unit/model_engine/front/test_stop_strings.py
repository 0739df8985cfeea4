from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.model_engine.front.stop_strings import StopMatcher, _failure_table

small_text = st.text(alphabet="ab<|", max_size=40)
stop_lists = st.lists(st.text(alphabet="ab<|", min_size=1, max_size=5), min_size=1, max_size=4)


def run(stops: list[str], pieces: list[str], *, included: bool = False) -> tuple[str, bool]:
    matcher = StopMatcher(stops, included=included)
    shown = ""
    for piece in pieces:
        text, matched = matcher.feed(piece)
        shown += text
        if matched:
            return shown, True
    return shown + matcher.flush(), False


def cut_at_first_complete_stop(text: str, stops: list[str], passed: int = 0) -> tuple[str, bool]:
    """The definition, by brute force. passed: characters within which none counts."""
    for end in range(passed + 1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@given(stops=stop_lists, pieces=st.lists(small_text, max_size=10))
def test_text_ends_before_the_first_complete_stop_however_it_is_cut(
    stops: list[str], pieces: list[str]
) -> None:
    assert run(stops, pieces) == cut_at_first_complete_stop("".join(pieces), stops)


@given(stops=stop_lists, pieces=st.lists(small_text, max_size=10))
def test_an_included_stop_is_the_end_of_the_text(stops: list[str], pieces: list[str]) -> None:
    text, found = "".join(pieces), cut_at_first_complete_stop("".join(pieces), stops)
    shown, matched = run(stops, pieces, included=True)
    assert matched is found[1]
    assert text.startswith(shown)
    assert shown.startswith(found[0])
    assert shown.removeprefix(found[0]) in (*stops, "") if matched else shown == text


@given(
    stops=stop_lists,
    early=st.lists(small_text, max_size=5),
    late=st.lists(small_text, max_size=5),
)
def test_a_stop_that_begins_where_none_counts_ends_the_text_behind_it(
    stops: list[str], early: list[str], late: list[str]
) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(map(matcher.pass_over, early))
    matched = False
    for piece in late:
        text, matched = matcher.feed(piece)
        shown += text
        if matched:
            break
    else:
        shown += matcher.flush()
    passed = "".join(early)
    assert (shown, matched) == cut_at_first_complete_stop(
        passed + "".join(late), stops, len(passed)
    )


@given(stops=stop_lists, pieces=st.lists(small_text, max_size=10))
def test_nothing_that_may_become_a_stop_is_shown(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops)
    fed = shown = ""
    for piece in pieces:
        text, matched = matcher.feed(piece)
        fed += piece
        shown += text
        if matched:
            return
        held = fed[len(shown) :]
        assert fed.startswith(shown)
        # What is held back is the start of a stop string, and nothing longer would be.
        assert held == "" or any(stop.startswith(held) for stop in stops)
        for length in range(len(held) + 1, len(fed) + 1):
            assert not any(stop.startswith(fed[-length:]) for stop in stops)


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["STOP"], ["go ST", "OP on"], ("go ", True)),
        (["STOP"], ["go ST", "AY"], ("go STAY", False)),
        (["aab"], ["aaab"], ("a", True)),
        (["b", "ab"], ["xab"], ("x", True)),
        (["abc", "b"], ["xabc"], ("xa", True)),
        (["\n\n"], ["one\n", "two\n", "\nthree"], ("one\ntwo", True)),
        (["é€"], ["caf", "é", "€"], ("caf", True)),
    ],
)
def test_examples(stops: list[str], pieces: list[str], expected: tuple[str, bool]) -> None:
    assert run(stops, pieces) == expected


def test_a_long_repetitive_stop_string_costs_no_more_than_the_text() -> None:
    """A quadratic matcher would take minutes here; this one compares each character a few times."""
    stops = ["a" * 1023 + "b" for _ in range(16)]
    text = "a" * 20_000
    shown, matched = run(stops, [text])
    assert (shown, matched) == (text, False)


def test_a_stop_string_is_looked_at_once_for_all_answers_that_share_it() -> None:
    """A thousand answers with long stop strings would otherwise stop the server for seconds."""
    before = _failure_table.cache_info().misses
    matchers = [StopMatcher(["a stop string of this test", "another"]) for _ in range(100)]
    assert _failure_table.cache_info().misses - before == 2
    assert matchers[0].feed("xx another yy") == ("xx ", True)
    assert matchers[1].feed("xx") == ("xx", False)
