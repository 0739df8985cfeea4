"""The double and the exercises notice every mistake of a list that an adapter could make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from atom.model_ops.backends import aiter_ops, load_backend
from atom.model_ops.backends.aiter_ops import mla_rows
from atom.model_ops.backends.aiter_ops.cache_views import PromptKeys, TiledCache
from atom.model_ops.backends.aiter_ops.library import Library, load_library
from atom.model_ops.backends.aiter_ops.mla import MLAAttention
from atom.model_ops.values import LinearWeight
from atom.self_test.exercises import EXERCISES
from tests.support.aiter.aiter_fp4_mutations import FP4_MUTATIONS
from tests.support.aiter.aiter_models import amd_card
from tests.support.aiter.aiter_mutations import MUTATIONS, Mutation
from tests.support.fake_aiter import TRAPS, ContractError

# What a mistake may look like from outside.
NOTICED = (AssertionError, TypeError, RuntimeError, ValueError, IndexError)
_ADAPTERS = "atom.model_ops.backends.aiter_ops"


@pytest.mark.parametrize("mutation", [*MUTATIONS, *FP4_MUTATIONS], ids=lambda each: each.name)
def test_a_mistake_is_noticed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    torch.manual_seed(0)

    def mutated() -> Library:
        library = load_library()
        original = library[mutation.function]

        def call(**given: Any) -> Any:
            nonlocal calls
            calls += 1
            return original(**mutation.change(given))

        call.__signature__ = original.__signature__  # type: ignore[attr-defined]
        return replace(library, found={**library.found, mutation.function: call})

    monkeypatch.setattr(aiter_ops, "load_library", mutated)
    with amd_card(monkeypatch, mutation.generation, mutation.card), torch.inference_mode():
        with pytest.raises(NOTICED):
            EXERCISES[mutation.exercise][0](load_backend("aiter").operations)
    assert calls, "the exercise does not come by the mistake"


def _plain_values(cache: TiledCache, keys: PromptKeys, dtype: torch.dtype) -> tuple[Any, ...]:
    """Values read in the order of `reshape_and_cache` without assembly's."""
    block, offset = keys.block, keys.offset
    k = cache.k[block, :, :, offset].flatten(2)
    return k, cache.v_plain[block, :, :, offset]


def _unrotated(w: LinearWeight, card: Any) -> LinearWeight:
    return w


_IN_LATENT = MLAAttention._in_latent


def _padded_with_anything(
    self: MLAAttention, q: Any, shape: Any, up: Any, cache: Any, where: tuple[Any, torch.Tensor]
) -> torch.Tensor:
    rows, nothing = where
    return _IN_LATENT(self, q, shape, up, cache, (rows, torch.zeros_like(nothing)))


# A part of an adapter, what stands in its place, and the exercise that notices.
PARTS: list[tuple[str, Any, str]] = [
    ("linear.for_card", _unrotated, "fp8 product"),
    ("experts.for_card", _unrotated, "fp8 experts"),
    ("linear.is_shuffled", lambda w: True, "fp8 product of odd outputs"),
    ("attention.gather", _plain_values, "attention"),
    ("attention.is_for_assembly", lambda shape: True, "attention with sinks"),
    ("mla_rows._indices", lambda asked, step, counts, pages: step.block_tables.flatten(),
     "latent attention"),
    ("mla.selected_rows", lambda library, asked, selected: mla_rows.selected_rows(
        library, asked, selected.clamp_min(0)), "selected latent attention"),
    ("mla.MLAAttention._in_latent", _padded_with_anything,
     "selected latent attention"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "instead", "exercise"), PARTS, ids=lambda each: str(each)[:40])
def test_a_wrong_part_is_noticed(
    part: str, instead: Callable[..., Any], exercise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(f"{_ADAPTERS}.{part}", instead)
    with amd_card(monkeypatch, "2026-08"), torch.inference_mode(), pytest.raises(NOTICED):
        EXERCISES[exercise][0](load_backend("aiter").operations)


@pytest.mark.parametrize("exercise", ["attention", "latent attention"])
def test_padding_that_is_not_cleared_is_noticed(
    exercise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(torch.Tensor, "masked_fill_", lambda x, mask, value: x)
    with amd_card(monkeypatch, "2026-08"), torch.inference_mode():
        with pytest.raises(AssertionError, match="attends to nothing"):
            EXERCISES[exercise][0](load_backend("aiter").operations)


def test_metadata_that_is_not_filled_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfilled() -> Library:
        library = load_library()
        return replace(
            library, found={**library.found, "get_mla_metadata_v1": lambda **given: None}
        )

    monkeypatch.setattr(aiter_ops, "load_library", unfilled)
    with amd_card(monkeypatch, "2026-08"), torch.inference_mode():
        with pytest.raises(AssertionError, match="was not filled for these rows"):
            EXERCISES["latent attention"][0](load_backend("aiter").operations)


def test_packed_heads_are_for_the_generation_that_takes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Library, "takes", lambda self, name, keyword: True)
    with amd_card(monkeypatch, "2026-02"), torch.inference_mode():
        with pytest.raises(TypeError, match="missing a required argument: 'qkv'"):
            EXERCISES["normed attention"][0](load_backend("aiter").operations)


@pytest.mark.parametrize("function", TRAPS)
def test_a_position_that_changed_its_meaning_is_refused(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with amd_card(monkeypatch, "2026-08") as aiter:
        with pytest.raises(ContractError, match="another release"):
            aiter.by_position(function)
