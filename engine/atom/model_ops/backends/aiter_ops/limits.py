"""The parts of a case that AITER cannot compute: by dtype, card, head, group, page and alignment.

Pure: reads the case and the card. The library reports the functions that a release lacks
(library.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from atom.model_ops.activations import Activation
from atom.model_ops.backends.aiter_ops.card import Card
from atom.model_ops.backends.aiter_ops.fp4_experts import CLAMPED
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.quantised.cached_heads import FP8_DTYPES
from atom.model_ops.routing import Routing, Scoring
from atom.model_ops.values import INT4_FORMATS, AttentionShape, LatentShape, WeightFormat
from atom.sizing.mask_rule import CAUSAL

_DTYPES = (torch.bfloat16, torch.float16)
_ASM_HEAD, _ASM_GROUP, _ASM_PAGE = 128, 16, 16
_GLUON_HEADS, _GLUON_GROUP, _GLUON_PAGES = (64, 128), 64, (16, 64)
_LATENT_RANK, _LATENT_ROPE = 512, 64
_LATENT_HEADS = (8, 16, *range(32, 129, 16))
_EXPERT_TILE = 32
_EXPERT_BLOCK = 128


def reasons_against(op: str, case: OpCase, card: Card) -> tuple[str, ...]:
    if case.dtype not in _DTYPES:
        return (f"computes in bfloat16 and float16, not {_name(case.dtype)}",)
    check = _CHECKS.get(op)
    return check(case, card) if check is not None else ()


def is_for_assembly(shape: AttentionShape) -> bool:
    """Return whether the assembly kernel of paged decode computes this attention: it has one scale,
    and no sinks."""
    plain = shape.mask == CAUSAL and shape.has_plain_scores
    same_scale = abs(shape.scale * _ASM_HEAD**0.5 - 1) < 1e-6
    fits = shape.head_dim == _ASM_HEAD and _group(shape) <= _ASM_GROUP
    return plain and same_scale and fits


def _against_norms(case: OpCase, card: Card) -> tuple[str, ...]:
    return ("its norms take weights of the model's dtype",) if case.wide_norms else ()


def _against_activations(case: OpCase, card: Card) -> tuple[str, ...]:
    others = [kind.value for kind in case.activations if kind is not Activation.SILU]
    return tuple(f"its activations have no {name}" for name in others)


def _against_products(case: OpCase, card: Card) -> tuple[str, ...]:
    return tuple(
        f"multiplies no {kind.value} on {card.architecture}"
        for kind in case.formats
        if kind in INT4_FORMATS
        or (kind is WeightFormat.MXFP4 and not card.multiplies_fp4)
        or (kind is WeightFormat.MXFP4 and case.dtype is not torch.bfloat16)
    )


def _against_attention(case: OpCase, card: Card) -> tuple[str, ...]:
    if case.layers.attention and case.wide_norms:
        return ("its norms take weights of the model's dtype",)
    is_fp8 = case.kv_dtype in FP8_DTYPES
    if not is_fp8 and case.kv_dtype is not case.dtype:
        return (f"its KV cache is {_name(case.dtype)} or fp8, not {_name(case.kv_dtype)}",)
    if is_fp8 and case.kv_dtype is not card.fp8:
        return (f"{card.architecture} converts {_name(card.fp8)}, not {_name(case.kv_dtype)}",)
    return tuple(
        dict.fromkeys(
            reason
            for shape in case.layers.attention
            for reason in _against_shape(shape, case.block_size, is_fp8)
        )
    )


def _against_shape(shape: AttentionShape, page: int, is_fp8: bool) -> tuple[str, ...]:
    if shape.softcap is not None:
        return ("its paged decode has no soft cap of scores",)
    if shape.sees_ahead:
        return ("its prompts attend to no later token, and tokens of an image do",)
    if shape.mask != CAUSAL:
        return ("releases of its paged decode differ by a token in what a window holds",)
    if shape.num_heads % shape.num_kv_heads:
        return (f"{shape.num_heads} query heads are no multiple of {shape.num_kv_heads}",)
    if is_for_assembly(shape):
        wrong = page != _ASM_PAGE
        return (f"its assembly decode reads blocks of {_ASM_PAGE}, not {page}",) if wrong else ()
    if is_fp8:
        return ("reads an fp8 cache for heads of 128 without sinks and own scale alone",)
    if shape.head_dim not in _GLUON_HEADS:
        return (f"decodes heads of {_listed(_GLUON_HEADS)}, not {shape.head_dim}",)
    if _group(shape) > _GLUON_GROUP:
        return (f"decodes up to {_GLUON_GROUP} query heads a KV head, not {_group(shape)}",)
    if page not in _GLUON_PAGES:
        return (f"decodes blocks of {_listed(_GLUON_PAGES)}, not {page}",)
    return ()


def _against_latent(case: OpCase, card: Card) -> tuple[str, ...]:
    if not case.layers.latent:
        return ()
    for dtype in (case.dtype, case.kv_dtype):
        if dtype is not torch.bfloat16:
            return (f"decodes latents in bfloat16, not {_name(dtype)}",)
    return tuple(reason for shape in case.layers.latent for reason in _against_latent_shape(shape))


def _against_selected(case: OpCase, card: Card) -> tuple[str, ...]:
    return _against_latent(case, card) if case.layers.index else ()


def _against_indexers(case: OpCase, card: Card) -> tuple[str, ...]:
    if not case.layers.index:
        return ()
    return (
        "its indexer reads keys in fp8 with their scales in one row, which the cache keeps apart",
    )


def _against_latent_shape(shape: LatentShape) -> tuple[str, ...]:
    if (shape.kv_rank, shape.rope_dim) != (_LATENT_RANK, _LATENT_ROPE):
        own = f"{shape.kv_rank} and {shape.rope_dim}"
        return (f"decodes latents of {_LATENT_RANK} with keys of {_LATENT_ROPE}, not {own}",)
    if (shape.nope_dim, shape.value_dim) != (128, 128):
        own = f"{shape.nope_dim} and {shape.value_dim}"
        return (f"computes prompts for heads of 128 and values of 128, not {own}",)
    if shape.num_heads not in _LATENT_HEADS:
        return (f"decodes 8, 16, or 32 to 128 heads in steps of 16, not {shape.num_heads}",)
    return ()


def _against_routing(case: OpCase, card: Card) -> tuple[str, ...]:
    return tuple(reason for routing in case.experts.routings for reason in _against_rule(routing))


def _against_rule(routing: Routing) -> tuple[str, ...]:
    if routing.scoring not in (Scoring.SIGMOID, Scoring.SOFTMAX):
        return (f"its router has no {routing.scoring.value}",)
    if routing.scoring is Scoring.SIGMOID and not routing.renormalize:
        return ("its router of sigmoids needs weights that sum to one",)
    if routing.scoring is Scoring.SIGMOID and routing.is_grouped and routing.group_top != 2:
        return (f"rates a group by its 2 best sigmoids, not {routing.group_top}",)
    if routing.scoring is Scoring.SOFTMAX and routing.is_grouped and routing.group_top != 1:
        return (f"rates a group by its best softmax, not {routing.group_top}",)
    return ()


def _against_experts(case: OpCase, card: Card) -> tuple[str, ...]:
    if not case.experts.routings:
        return ()
    if len(case.experts.formats) > 1:
        return ("multiplies experts of one format alone",)
    if any(routing.weighs_inputs for routing in case.experts.routings):
        return ("weighs what an expert makes, and not what it is given",)
    if case.experts.partial:
        return ("is not told here that some of a token's experts are another rank's",)
    if case.experts.formats == (WeightFormat.MXFP4,):
        return _against_fp4_experts(case, card)
    reasons = _against_activations(case, card)
    for kind in case.experts.formats:
        if kind not in (WeightFormat.PLAIN, WeightFormat.FP8, WeightFormat.FP8_BLOCKS):
            reasons += (f"has no experts of {kind.value}",)
    blocks = WeightFormat.FP8_BLOCKS in case.experts.formats
    multiple = _EXPERT_BLOCK if blocks else _EXPERT_TILE
    for size in dict.fromkeys(side for sizes in case.experts.sizes for side in sizes):
        if size % multiple:
            reasons += (f"shuffles experts of sizes that {multiple} divides, not {size}",)
    return reasons


def _against_fp4_experts(case: OpCase, card: Card) -> tuple[str, ...]:
    if not card.multiplies_fp4:
        return (f"has no experts of mxfp4 on {card.architecture}",)
    if case.dtype is not torch.bfloat16:
        return (f"multiplies experts of mxfp4 with bfloat16, not {_name(case.dtype)}",)
    if case.activations == (CLAMPED,):
        return ()
    if case.experts.fp4_inputs:
        return _against_activations(case, card)
    return (
        "rounds inputs of experts of mxfp4 to four bits, for which this checkpoint is not made, "
        f"unless their activation is clamped as gpt-oss' (alpha {CLAMPED.alpha}, limit "
        f"{CLAMPED.limit})",
    )


def _group(shape: AttentionShape) -> int:
    return shape.num_heads // shape.num_kv_heads


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(numbers: tuple[int, ...]) -> str:
    return " and ".join(map(str, numbers))


_CHECKS: dict[str, Callable[[OpCase, Card], tuple[str, ...]]] = {
    "rms_norm": _against_norms,
    "norm": _against_norms,
    "act_and_mul": _against_activations,
    "prepare_linear": _against_products,
    "linear": _against_products,
    "qk_norm_rope_store": _against_attention,
    "paged_attention": _against_attention,
    "attention": _against_attention,
    "mla_rope_store": _against_latent,
    "mla_attention": _against_latent,
    "select_tokens": _against_indexers,
    "sparse_mla_attention": _against_selected,
    "route": _against_routing,
    "prepare_experts": _against_experts,
    "experts": _against_experts,
}
