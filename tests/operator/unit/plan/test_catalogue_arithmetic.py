"""Every model of the catalogue against bytes computed by hand (tests/support/catalogue)."""

from __future__ import annotations

import pytest

from atom.sizing import (
    KV_ELEMENTS,
    ModelFacts,
    Speculation,
    kv_layout,
    kv_terms,
)
from atom_operator.plan.model_facts import catalogue_sources, facts_from_catalogue
from tests.support.catalogue.case import Case
from tests.support.catalogue.dense import DENSE
from tests.support.catalogue.entries import ENTRIES
from tests.support.catalogue.experts import EXPERTS
from tests.support.catalogue.hybrid import HYBRID
from tests.support.catalogue.latent import LATENT
from tests.support.catalogue.quantised import QUANTISED
from tests.support.catalogue.windowed import WINDOWED

CASES: dict[str, Case] = {
    **DENSE, **ENTRIES, **EXPERTS, **HYBRID, **LATENT, **QUANTISED, **WINDOWED
}  # fmt: skip


def facts_of(source: str) -> ModelFacts:
    facts = facts_from_catalogue(source).facts
    assert facts is not None
    return facts


def test_every_model_of_the_catalogue_is_here() -> None:
    assert set(CASES) == set(catalogue_sources())


@pytest.mark.parametrize("source", CASES)
def test_weights_by_hand_are_the_plans(source: str) -> None:
    facts, case = facts_of(source), CASES[source]
    for ranks, expected in case.weights.items():
        assert facts.weight_bytes(tensor_parallel=ranks) == expected, ranks
    for ranks, expected in case.expert_weights.items():
        found = facts.weight_bytes(tensor_parallel=ranks, expert_parallel=True)
        assert found == expected, ranks
    for ranks, extra in case.draft_weights.items():
        assert facts.weight_bytes(tensor_parallel=ranks, with_mtp=True) == (
            facts.weight_bytes(tensor_parallel=ranks) + extra
        ), ranks
    # float32, as on a CPU: four bytes for everything, quantised or not
    tables = case.tables_bytes
    assert facts.weight_bytes(4) - tables == 4 * (facts.weight_bytes(1) - tables)


@pytest.mark.parametrize("source", CASES)
def test_cache_bytes_by_hand_are_the_plans(source: str) -> None:
    facts, case = facts_of(source), CASES[source]
    for ranks, expected in case.kv_token.items():
        layout = kv_layout(facts, KV_ELEMENTS["bf16"], ranks)
        assert layout.growing_bytes_per_token == expected, ranks
        windows = {group.window for group in layout.groups} - {None}
        assert windows == ({case.window_tokens} if case.window else set())
    for ranks, expected in case.fp8_token.items():
        assert kv_layout(facts, KV_ELEMENTS["fp8"], ranks).growing_bytes_per_token == expected, (
            ranks
        )
    for ranks, expected in case.window.items():
        terms = kv_terms(facts, KV_ELEMENTS["bf16"], ranks)
        windowed = [term for term in terms if term.mask.window is not None]
        assert {term.mask.window for term in windowed} == {case.window_tokens}
        assert sum(term.layers * term.token_bytes for term in windowed) == expected
        layout = kv_layout(facts, KV_ELEMENTS["bf16"], ranks)
        growing = 1 if case.kv_token[1] else 0
        padded = (len(layout.groups) - growing) * layout.bytes_per_token
        assert padded == expected + case.padding_bytes, ranks
    for ranks, expected in case.draft_token.items():
        layout = kv_layout(facts, KV_ELEMENTS["bf16"], ranks, Speculation(1))
        assert (len(layout.groups), layout.growing_bytes_per_token) == (1, expected), ranks
