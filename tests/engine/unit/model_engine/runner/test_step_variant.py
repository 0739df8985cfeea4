"""StepVariant: every mixture of rows that is served has a variant, and so a graph."""

from __future__ import annotations

from dataclasses import fields

import pytest

from atom.model_engine.runner.step_variant import PLAIN, StepVariant

KINDS = [field.name for field in fields(StepVariant)]
WIDEST = StepVariant(**dict.fromkeys(KINDS, True))


def test_rows_are_plain_unless_a_variant_says_otherwise() -> None:
    assert PLAIN.narrower() == (PLAIN,)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_rows_has_graphs_beside_those_of_plain_rows(kind: str) -> None:
    alone = StepVariant(**{kind: True})
    assert alone.narrower() == (PLAIN, alone)


def test_every_mixture_of_rows_is_captured_once() -> None:
    variants = WIDEST.narrower()
    assert variants[0] == PLAIN
    assert variants[-1] == WIDEST
    assert len(set(variants)) == len(variants) == 2 ** len(KINDS)
