"""Ordered int4 matrices with their inputs in the order of their groups.

Inputs that share a scale are then contiguous, as in a matrix that is not ordered, and a kernel
reads its activations in that order. Called by backends that prepare matrices for such kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from atom.model_ops.quantised.codes import pack_pairs, unpack_pairs
from atom.model_ops.values import InputGroups, LinearWeight


def sort_inputs(w: LinearWeight) -> LinearWeight:
    """Sort the inputs of a loaded INT4_ORDERED matrix, or of a stack of them, by group, part by
    part. Parts whose inputs have the same groups, as GPTQ finds them for one input, become one
    part; in a stack only if this holds for every matrix."""
    scales = w.scales
    assert scales is not None
    assert scales.groups is not None
    index, rows = scales.groups.index, scales.groups.rows
    if bool((index == index[..., :1, :]).all()):
        index, rows = index[..., :1, :], (sum(rows),)
    index, order = index.sort(dim=-1, stable=True)
    data = torch.empty_like(w.data)
    for stored, made, own in zip(_matrices(w.data), _matrices(data), _matrices(order), strict=True):
        parts = zip(unpack_pairs(stored).split(rows), made.split(rows), own, strict=True)
        for codes, target, places in parts:
            target.copy_(pack_pairs(codes[:, places]))
    places = torch.arange(index.shape[-1], device=index.device) // scales.block[1]
    groups = InputGroups(index, rows, order.int(), whole=bool((index == places).all()))
    return replace(w, data=data, scales=replace(scales, groups=groups))


def _matrices(stack: torch.Tensor) -> torch.Tensor:
    """View [.., rows, columns] as [all, rows, columns], the same memory."""
    return stack.reshape(-1, *stack.shape[-2:])


def parts_of(w: LinearWeight) -> Iterator[LinearWeight]:
    """Yield each part of the outputs as a separate matrix, over the same memory; the matrix itself
    if it has no parts."""
    scales = w.scales
    if scales is None or scales.groups is None or len(scales.groups.rows) == 1:
        yield w
        return
    groups, first = scales.groups, 0
    for number, rows in enumerate(groups.rows):
        own, end = slice(number, number + 1), first + rows
        order = None if groups.order is None else groups.order[own]
        part = replace(groups, index=groups.index[own], rows=(rows,), order=order)
        zero = None if scales.zero is None else scales.zero[first // 2 : end // 2]
        bias = None if w.bias is None else w.bias[first:end]
        part_scales = replace(scales, scale=scales.scale[first:end], zero=zero, groups=part)
        yield replace(w, data=w.data[first:end], bias=bias, scales=part_scales)
        first = end
