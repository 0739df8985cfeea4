"""Patterns of others match as Python's and PEFT's own, in linear time, or are refused by name."""

from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.bounded_input.name_patterns import (
    MOST_PATTERNS,
    NameEnds,
    NamePatternError,
    compile_pattern,
    compile_patterns,
    glob_pattern,
)

NAMES = st.lists(
    st.sampled_from(["model", "layers", "0", "1", "10", "q_proj", "experts", "mlp", "a", "b"]),
    min_size=1,
    max_size=5,
).map(".".join)
PIECES = st.sampled_from(
    [
        "model",
        ".*",
        r"\.",
        "layers",
        "[01]",
        r"\d+",
        "(?:q|k)_proj",
        "(mlp|experts)",
        ".",
        "a?",
        "$",
    ]
)
BODIES = st.lists(PIECES, max_size=5).map("".join)
PATTERNS = st.builds(
    lambda begin, ahead, body: begin + ahead + body,
    st.sampled_from(["", "^"]),
    st.builds(
        lambda signs, bodies: "".join(f"{s}{b})" for s, b in zip(signs, bodies, strict=False)),
        st.lists(st.sampled_from(["(?!", "(?="]), max_size=2),
        st.lists(BODIES, min_size=2, max_size=2),
    ),
    BODIES,
)


@given(pattern=PATTERNS, name=NAMES)
def test_a_pattern_matches_as_in_python(pattern: str, name: str) -> None:
    assert compile_pattern(pattern).matches(name) == (re.match(pattern, name) is not None)


@given(
    glob=st.text(alphabet="ab.*?[]!-\\", max_size=6).filter(lambda text: "--" not in text),
    name=st.text(alphabet="ab.[]-", max_size=5),
)
def test_a_glob_matches_as_fnmatch(glob: str, name: str) -> None:
    try:
        pattern = compile_pattern(glob_pattern(glob))
    except NamePatternError:  # a range that begins behind its end
        return
    assert pattern.matches(name) == fnmatch.fnmatchcase(name, glob)


ENDS = st.lists(
    NAMES | st.sampled_from(["q.proj", r"layers\.[01].q_proj", ".*mlp", "^model.a", "a|b"]),
    max_size=5,
    unique=True,
)


@given(ends=ENDS, name=NAMES)
def test_the_first_end_that_matches_is_pefts(ends: list[str], name: str) -> None:
    from peft.utils.other import get_pattern_key

    place = NameEnds(ends).first(name)
    assert (name if place is None else ends[place]) == get_pattern_key(ends, name)


def test_twenty_thousand_plain_names_are_looked_up() -> None:
    names = [f"model.layers.{layer}.experts.{e}.up" for layer in range(60) for e in range(350)]
    ends = NameEnds(names)
    assert [ends.first(f"base.{name}") for name in names[::997]] == list(range(0, len(names), 997))


# Python's own engine takes exponential time for each of these.
ENDLESS = ["([a-z_.0-9]+)+!", "(a|a)*b", "(.*a)*x", "(a?){60}a{60}", "(.*)*(.*)*!", "((a+)+)+$!"]


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_pattern_that_would_backtrack_for_ever_answers(pattern: str) -> None:
    compile_pattern(pattern).matches("a" * 5000 + ".")
    NameEnds([pattern]).first("a" * 5000 + ".")


REFUSED = {
    r"(a)\1": "linear time",
    "a(?!b)": "linear time",
    "(?<=a)b": "linear time",
    "(?!a)b|c": "one of its branches",
    "(?!a": "no end",
    "[": "linear time",
    "*": "linear time",
    "((a{100}){100}){100}": "linear time",
    "(" * 1000: "linear time",
    "a" * 5000: "longer than",
}


@pytest.mark.parametrize("pattern", REFUSED)
def test_every_other_pattern_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(NamePatternError, match=REFUSED[pattern]):
        compile_pattern(pattern)
    with pytest.raises(NamePatternError, match=re.escape(repr(pattern[:80])[:20])) as refusal:
        compile_patterns([pattern])
    assert len(str(refusal.value)) < 300


def test_more_patterns_than_anybody_writes_are_refused() -> None:
    with pytest.raises(NamePatternError, match=f"more than {MOST_PATTERNS}"):
        compile_patterns(["a"] * (MOST_PATTERNS + 1))
