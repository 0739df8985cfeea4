"""MLA of a step: decodes and ragged rows absorbed, long prompts up-projected.

Queries are absorbed, and weighted latents up-projected, by batched products of the vendor's
library. A long prompt without a history takes fewer multiplications with keys and values of every
token; these are computed from the entries that the step itself stored, and the library attends to
them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.backends.triton_ops.attention.gqa import spans_between
from atom.model_ops.backends.triton_ops.attention.mla_decode import mla_decode
from atom.model_ops.backends.triton_ops.attention.mla_prefill import LatentStep, mla_prefill
from atom.model_ops.backends.triton_ops.attention.prefill import RowSpan
from atom.model_ops.values import LatentCache, LatentShape, LatentTokens, LinearWeight
from atom.utils.forward_context import AttentionMetaData, EqualPrompts

_OPS = ("mla_rope_store", "mla_attention", "sparse_mla_attention")
_LARGEST_RANK, _LARGEST_ROPE = 512, 128
_ALIGNMENT = 16  # bytes; where tensors begin, the library's kernels rely on it and do not check


def reasons_against(op: str, case: OpCase) -> tuple[str, ...]:
    if op not in _OPS:
        return ()
    return tuple(
        f"computes latent attention for ranks up to {_LARGEST_RANK} and rotated keys up to "
        f"{_LARGEST_ROPE}, not {shape.kv_rank} and {shape.rope_dim}"
        for shape in case.layers.latent
        if shape.kv_rank > _LARGEST_RANK or shape.rope_dim > _LARGEST_ROPE
    )


def mla_attention(
    tokens: LatentTokens,
    shape: LatentShape,
    up: LinearWeight,
    cache: LatentCache,
    step: AttentionMetaData,
) -> torch.Tensor:
    q, decodes = tokens.q, step.num_decodes
    groups = tuple(
        group
        for group in step.prompts.equal
        if not shape.prefers_absorbed(group.leading, group.leading)
    )
    keys, values = up_by_head(up, shape)
    still, q_rope = q.split([shape.nope_dim, shape.rope_dim], dim=-1)
    out = torch.empty(
        (q.shape[0], shape.num_heads, shape.value_dim), dtype=q.dtype, device=q.device
    )
    if not _is_all(groups, step, q.shape[0]):
        absorbed = by_head(still, keys)
        found = torch.zeros_like(absorbed) if step.has_padding else torch.empty_like(absorbed)
        if decodes:
            found[:decodes] = mla_decode(absorbed[:decodes], q_rope[:decodes], shape, cache, step)
        for span in _spans(groups, step, q.shape[0]):
            mla_prefill((absorbed, q_rope), LatentStep(shape, cache, step), span, found)
        by_head(found, values.transpose(1, 2), out)
    for group in groups:
        end = group.first_token + group.rows * group.leading
        out[group.first_token : end] = _up_projected(tokens, shape, up, group)
    return out.flatten(1)


def _is_all(groups: tuple[EqualPrompts, ...], step: AttentionMetaData, tokens: int) -> bool:
    """Return whether the groups leave no tokens to compute in the latent."""
    return step.num_decodes == 0 and sum(g.rows * g.leading for g in groups) == tokens


def _spans(groups: tuple[EqualPrompts, ...], step: AttentionMetaData, tokens: int) -> list[RowSpan]:
    """Return the spans of rows, besides decodes, that are computed in the latent."""
    rests = [
        RowSpan(group.first_row, 1, group.length - group.leading, skipped=group.leading)
        for group in groups
        if group.leading < group.length
    ]
    return [*rests, *spans_between(groups, step, tokens)]


def up_by_head(up: LinearWeight, shape: LatentShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Split the up-projection into the matrices of keys [Hq, nope, rank] and of values [Hq, value,
    rank]."""
    keys, values = up.data.unflatten(0, (shape.num_heads, -1)).split(
        [shape.nope_dim, shape.value_dim], dim=1
    )
    return keys, values


def by_head(
    x: torch.Tensor, matrices: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Map x [T, Hq, in] by each head's matrix [in, out] of matrices [Hq, in, out] → [T, Hq,
    out]."""
    if out is None:
        size = (x.shape[0], matrices.shape[0], matrices.shape[2])
        out = torch.empty(size, dtype=x.dtype, device=x.device)
    torch.bmm(x.transpose(0, 1), matrices, out=out.transpose(0, 1))
    return out


def _up_projected(
    tokens: LatentTokens, shape: LatentShape, up: LinearWeight, group: EqualPrompts
) -> torch.Tensor:
    """Attend with the leading tokens of the group's prompts → [rows · leading, Hq, value]."""
    own = slice(group.first_token, group.first_token + group.rows * group.leading)
    latent, key = tokens.entries[own].split([shape.kv_rank, shape.rope_dim], dim=-1)
    projected = F.linear(latent, up.data).unflatten(1, (shape.num_heads, -1))
    k, v = projected.split([shape.nope_dim, shape.value_dim], dim=-1)
    k = torch.cat((k, key.unsqueeze(1).expand(-1, shape.num_heads, -1)), dim=-1)
    if shape.value_dim < shape.head_dim:  # the library is fastest for equal sizes
        v = F.pad(v, (0, shape.head_dim - shape.value_dim))
    elif shape.nope_dim * v.element_size() % _ALIGNMENT:
        v = v.contiguous()
    q, k, v = (
        x.unflatten(0, (group.rows, group.leading)).transpose(1, 2) for x in (tokens.q[own], k, v)
    )
    result = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=shape.scale)
    return result[..., : shape.value_dim].transpose(1, 2).flatten(0, 1)
