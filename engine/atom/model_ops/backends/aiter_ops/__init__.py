"""AITER, AMD's library of kernels, adapted to the contract of our operations.

There is one file per family of operations; each calls AITER by keyword, with the layouts and dtypes
of its documentation. It has never run on an AMD device: tests run it against a double of AITER's
contracts (tests/support/fake_aiter), for three of its generations. `auto` prefers these operations
on ROCm; another backend computes the operations that AITER lacks for a model, with the reason in
the log.

Sampling is excluded on purpose. AITER draws by one exponential per token. Here a draw is a race of
two hashes (backends/noise.py), which a seed reproduces on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from atom.model_ops.backends.aiter_ops import rank_group
from atom.model_ops.backends.aiter_ops.attention import PagedAttention
from atom.model_ops.backends.aiter_ops.card import Card
from atom.model_ops.backends.aiter_ops.dense import Activations, Norms
from atom.model_ops.backends.aiter_ops.experts import Experts
from atom.model_ops.backends.aiter_ops.fused import NormedProducts
from atom.model_ops.backends.aiter_ops.library import Library, LibraryError, load_library
from atom.model_ops.backends.aiter_ops.limits import reasons_against
from atom.model_ops.backends.aiter_ops.linear import Products
from atom.model_ops.backends.aiter_ops.mla import MLAAttention
from atom.model_ops.backends.aiter_ops.requirements import functions_of
from atom.model_ops.backends.aiter_ops.rope_store import RopeStore
from atom.model_ops.backends.aiter_ops.routing import Router
from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.op_case import OpCase
from atom.utils import device


def backend() -> Backend:
    architecture = device.amd_architecture()
    if architecture is None:
        return _unusable("torch sees no AMD GPU")
    card = Card(architecture)
    if card.reasons_against:
        return _unusable(*card.reasons_against)
    try:
        library = load_library()
    except LibraryError as error:
        return _unusable(str(error))
    operations = _operations(library, card)
    return Backend(
        name="aiter",
        operations=operations,
        capturable=operations.keys(),
        reasons_against=partial(_reasons_against, library, card),
        arranges=True,
        join=partial(rank_group.join, library),
    )


def _operations(library: Library, card: Card) -> dict[str, Callable[..., Any]]:
    norms, products = Norms(library), Products(library, card)
    normed = NormedProducts(library, norms, products)
    rope_store = RopeStore(library)
    attention = PagedAttention(library, rope_store)
    experts, latent = Experts(library, card), MLAAttention(library, norms)
    return {
        "rms_norm": norms.rms_norm,
        "norm": norms.norm,
        "act_and_mul": Activations(library).act_and_mul,
        "prepare_linear": products.prepare_linear,
        "prepare_experts": experts.prepare_experts,
        "linear": products.linear,
        "norm_linear": normed.norm_linear,
        "norm_gated_linear": normed.norm_gated_linear,
        "route": Router(library).route,
        "experts": experts.experts,
        "qk_norm_rope_store": rope_store.qk_norm_rope_store,
        "paged_attention": attention.paged_attention,
        "attention": attention.attention,
        "mla_rope_store": latent.mla_rope_store,
        "mla_attention": latent.mla_attention,
        "sparse_mla_attention": latent.sparse_mla_attention,
    }


def _reasons_against(library: Library, card: Card, op: str, case: OpCase) -> tuple[str, ...]:
    reasons = reasons_against(op, case, card)
    return reasons or library.reasons_without(*functions_of(op, case))


def _unusable(*reasons: str) -> Backend:
    return Backend(name="aiter", operations={}, unusable=reasons)
