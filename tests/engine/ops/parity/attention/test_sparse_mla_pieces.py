"""Scores and absorbed queries in several pieces select and find what one piece does."""

from __future__ import annotations

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.triton_ops.attention import sparse_mla
from tests.engine.ops.inputs import assert_rows_agree
from tests.engine.ops.mla_inputs import latent_case
from tests.engine.ops.parity.attention.test_sparse_mla import (
    CHUNKS,
    DECODES,
    EXACT,
    assert_same_slots,
    index_case,
    random_slots,
    with_slots,
)


@pytest.mark.parametrize("rows", [DECODES, [(30, 1), (20, 12)]], ids=["decodes", "both"])
def test_pieces_that_cut_rows(
    backend: Backend,
    reference: Backend,
    device: torch.device,
    rows: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    latent = with_slots(latent_case(rows, device=device, dtype=torch.float32))
    case = index_case(latent, EXACT, whole=True)
    monkeypatch.setattr(sparse_mla, "MOST_SCORES", 5 * case.step.max_context_len)
    assert_same_slots(case.selected(backend), case.selected(reference))


def test_queries_folded_in_pieces(
    backend: Backend, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = latent_case(CHUNKS, device=device, dtype=torch.float32)
    selected, found = random_slots(case, 20), []
    for elements in (2**25, 5 * case.shape.num_heads * case.shape.kv_rank):
        monkeypatch.setattr(sparse_mla, "_ABSORBED", elements)
        tokens, shape, up, cache, _ = case.arguments
        attend = backend.operations["sparse_mla_attention"]
        found.append(attend(tokens, shape, up, cache, selected))
    assert_rows_agree(found[1], found[0], torch.float32)
