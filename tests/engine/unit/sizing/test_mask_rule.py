"""MaskRule: what a query attends to, and how few sources tell one rule from another."""

import re
from pathlib import Path

import pytest

from atom.sizing.mask_rule import CAUSAL, MaskKind, MaskRule, chunked, sliding_window

ROOT = Path(__file__).resolve().parents[4]
RULES = [CAUSAL, sliding_window(1), sliding_window(3), sliding_window(50), chunked(1), chunked(4)]
CONTEXT = 11
MOST_SOURCES = 15
# By these a source tells one rule from another: a new rule would have to be told there, too.
DISTINGUISHES = re.compile(r"\bMaskKind\.|\bIN_CHUNKS\b|\bin_chunks\b|\bchunked\(|\.within\(")


def visible(rule: MaskRule, at: int) -> list[int]:
    """Say by words of the paper what a query at `at` attends to."""
    everything = range(at + 1)
    if rule.kind is MaskKind.SLIDING_WINDOW:
        return list(everything[-rule.size :])
    if rule.kind is MaskKind.CHUNKED:
        return [key for key in everything if key // rule.size == at // rule.size]
    return list(everything)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_question_about_a_rule_has_one_answer(rule: MaskRule) -> None:
    seen = {at: visible(rule, at) for at in range(CONTEXT)}
    for at, keys in seen.items():
        assert [key for key in range(CONTEXT) if rule.sees(at, key)] == keys
        assert max(0, rule.first_seen(at)) == keys[0]
        assert rule.seen(at + 1) == len(keys)
    assert rule.seen(0) == 0
    assert rule.most_seen(CONTEXT) == min(CONTEXT, rule.window or CONTEXT)
    assert rule.most_seen(CONTEXT) >= max(map(len, seen.values()))


def test_nothing_that_a_query_may_attend_to_leaves_the_window_that_is_kept() -> None:
    for rule in RULES:
        for at in range(CONTEXT):
            assert rule.window is None or at - rule.first_seen(at) < rule.window


def test_a_chunk_that_holds_every_sequence_is_no_rule() -> None:
    assert chunked(64).within(64) == chunked(64).within(20) == CAUSAL
    assert chunked(64).within(65) == chunked(64)
    assert sliding_window(64).within(20) == sliding_window(64)


def test_a_window_of_nothing_is_a_window_of_all() -> None:
    assert sliding_window(None) == CAUSAL == MaskRule()
    with pytest.raises(AssertionError):
        MaskRule(MaskKind.CHUNKED)


def test_a_new_rule_would_touch_few_sources() -> None:
    """Kernels that are compiled for a rule, the value itself, and the family that declares it."""
    sources = [
        path.relative_to(ROOT).as_posix()
        for folder in ("engine/atom", "operator/atom_operator")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".c", ".h") and DISTINGUISHES.search(path.read_text())
    ]
    assert "engine/atom/sizing/mask_rule.py" in sources
    assert len(sources) <= MOST_SOURCES, sources
    assert not any(name.startswith("engine/atom/model_engine") for name in sources)
    assert not any(name.startswith("operator") for name in sources)
