"""Attention of a step: one kernel for decodes, one for decodes of the same sequence, one for ragged
rows, and a library for long prompts and for long chunks after a history.

Supported: head sizes up to 256 that are multiples of 8, any number of query heads per KV head, any
block size, windows and soft caps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.backends.triton_ops.attention.decode import decode_attention
from atom.model_ops.backends.triton_ops.attention.decode_append import decode_append_attention
from atom.model_ops.backends.triton_ops.attention.long_chunks import chunk_attention, is_for_library
from atom.model_ops.backends.triton_ops.attention.paged_tiles import LayerStep
from atom.model_ops.backends.triton_ops.attention.prefill import RowSpan, prefill_attention
from atom.model_ops.backends.triton_ops.attention.rope_store import qk_norm_rope_store
from atom.model_ops.backends.triton_ops.attention.sdpa_prefill import dense_attention
from atom.model_ops.backends.triton_ops.attention.verify_decode import verify_attention
from atom.model_ops.values import AttentionShape, LayerCache, Rotary
from atom.utils.forward_context import AttentionMetaData, EqualPrompts, LongChunk
from atom.utils.long_chunks import rest_of

_LARGEST_HEAD, _HEAD_MULTIPLE = 256, 8


def reasons_against(op: str, case: OpCase) -> tuple[str, ...]:
    if op not in ("qk_norm_rope_store", "paged_attention", "attention"):
        return ()
    wrong = {
        shape.head_dim
        for shape in case.layers.attention
        if shape.head_dim > _LARGEST_HEAD or shape.head_dim % _HEAD_MULTIPLE
    }
    return tuple(
        f"computes attention for head sizes up to {_LARGEST_HEAD} that are multiples of "
        f"{_HEAD_MULTIPLE}, not {size}"
        for size in sorted(wrong)
    )


def paged_attention(
    q: torch.Tensor, shape: AttentionShape, cache: LayerCache, step: AttentionMetaData
) -> torch.Tensor:
    out, layer = _result(q, shape, step), LayerStep(shape, cache, step)
    decodes, rows = step.num_decodes, step.context_lens.shape[0]
    if decodes:
        _attend_decodes(q[:decodes], layer, out[:decodes])
    if decodes < rows:
        _attend_rows(q, layer, (), out)
    return out.flatten(1)


def attention(
    qkv: torch.Tensor,
    shape: AttentionShape,
    rotary: Rotary,
    cache: LayerCache,
    step: AttentionMetaData,
) -> torch.Tensor:
    decodes, layer = step.num_decodes, LayerStep(shape, cache, step)
    out = _result(qkv, shape, step)
    # Programs that store keys on the way do not see each other's keys.
    at_once = step.runs is None
    if decodes and at_once:
        decode_append_attention(qkv[:decodes], layer, out[:decodes], rotary)
    if not at_once or decodes < step.context_lens.shape[0]:
        # A prompt attends to the cache's values, so a cached prefix does not change the result.
        groups = () if cache.k_scale is not None else _dense_groups(shape, step)
        q = qk_norm_rope_store(
            qkv, shape, rotary, cache, step.slot_mapping,
            first_token=decodes if at_once else 0, keep_keys=bool(groups),
        )  # fmt: skip
        if decodes and not at_once:
            _attend_decodes(q[:decodes], layer, out[:decodes])
        for group in groups:
            result = dense_attention(q, qkv, shape, group)
            if result.shape == out.shape:  # the whole step: no copies to join
                return result.flatten(1)
            out[group.first_token : group.first_token + len(result)] = result
            if group.leading < group.length:
                _attend_rest(q, layer, group, out)
        _attend_rows(q, layer, groups, out)
    return out.flatten(1)


def _attend_rest(q: torch.Tensor, layer: LayerStep, group: EqualPrompts, out: torch.Tensor) -> None:
    """Attend with the prompt's remaining tokens after its dense attention."""
    chunk = rest_of(group)
    if chunk is not None and is_for_library(q, layer, chunk):
        chunk_attention(q, layer, chunk, out)
    else:
        rest = group.length - group.leading
        span = RowSpan(group.first_row, 1, rest, skipped=group.leading)
        prefill_attention(q, layer, span, out)


def _attend_rows(
    q: torch.Tensor, layer: LayerStep, groups: tuple[EqualPrompts, ...], out: torch.Tensor
) -> None:
    """Attend with all rows except decodes and those of the groups; the cache holds their keys and
    values."""
    chunks = [chunk for chunk in layer.step.prompts.chunks if is_for_library(q, layer, chunk)]
    for chunk in chunks:
        if chunk.head:
            prefill_attention(q, layer, RowSpan(chunk.row, 1, chunk.head), out)
        chunk_attention(q, layer, chunk, out)
    for span in spans_between((*groups, *chunks), layer.step, q.shape[0]):
        prefill_attention(q, layer, span, out)


def _attend_decodes(q: torch.Tensor, layer: LayerStep, out: torch.Tensor) -> None:
    """Attend with decodes whose keys and values the cache holds."""
    if layer.step.runs is None:
        decode_attention(q, layer, out)
    else:
        verify_attention(q, layer, layer.step.runs, out)


def _result(x: torch.Tensor, shape: AttentionShape, step: AttentionMetaData) -> torch.Tensor:
    """Allocate the heads [T, Hq, D] of each token of x; zeros if some tokens belong to no row."""
    new = torch.zeros if step.has_padding else torch.empty
    return new((x.shape[0], shape.num_heads, shape.head_dim), dtype=x.dtype, device=x.device)


def _dense_groups(shape: AttentionShape, step: AttentionMetaData) -> tuple[EqualPrompts, ...]:
    """Return the long prompts whose tokens the layer sees completely, if the library supports its
    scores and mask, which is causal."""
    if not shape.has_plain_scores or shape.last_seen(step) is not None:
        return ()
    return tuple(
        group for group in step.prompts.equal if shape.mask.seen(group.leading) == group.leading
    )


def spans_between(
    others: Iterable[EqualPrompts | LongChunk], step: AttentionMetaData, tokens: int
) -> Iterator[RowSpan]:
    """Yield the spans of rows that are neither decodes nor in `others`."""
    row = token = step.num_decodes
    taken = (
        (one.row, one.first_token, 1, one.length)
        if isinstance(one, LongChunk)
        else (one.first_row, one.first_token, one.rows, one.rows * one.length)
        for one in others
    )
    for first_row, first_token, rows, length in sorted(taken):
        if first_row > row:
            yield RowSpan(row, first_row - row, first_token - token)
        row, token = first_row + rows, first_token + length
    rows = step.context_lens.shape[0]
    if rows > row:
        yield RowSpan(row, rows - row, tokens - token)
