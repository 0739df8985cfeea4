"""Products by the compiled kernel, for any number of rows.

A matrix that ranks divide by its inputs has them in leaves, each summed front to back, which are
added as a tree: ((0 + 1) + (2 + 3)). A rank has whole leaves, and the sum over ranks is the tree's
upper levels, so that one rank, two and four give the same bits.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from atom.model_ops.backends.native_cpu.dense import product
from atom.model_ops.tree_sums import leaves_of, tree_sum
from atom.model_ops.values import LinearWeight


def linear(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    if not w.data.mT.is_contiguous():
        w = replace(w, data=w.data.mT.contiguous().mT)
    leaves = leaves_of(w)
    if leaves == 1:
        return product(x.contiguous(), w)
    size = w.inputs // leaves
    parts = []
    for leaf in range(leaves):
        own = slice(leaf * size, (leaf + 1) * size)
        # The bias joins the first leaf, which is the first rank's however many there are.
        bias = w.bias if leaf == 0 else None
        parts.append(product(x[:, own].contiguous(), LinearWeight(w.data[:, own], bias)))
    return tree_sum(parts)
