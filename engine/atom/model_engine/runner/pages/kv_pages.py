"""The kinds of pages of a runner's cache.

One kind for each group of layers, and one for the checkpoints of states if layers keep any. The
layers' own tensors decide the bytes of a page: a tier copies what layers store, whatever a backend
made of its order, and only the same engine reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atom.model_ops.attention import CachedAttention, CachedLayer, StateLayer
from atom.model_ops.page_table import PageTable
from atom.sizing.cache_groups import CacheGroup


def page_tables(
    layers: Sequence[CachedLayer], groups: Sequence[CacheGroup], num_checkpoints: int
) -> list[PageTable]:
    """Return the table of each group, in the model's order of layers, and then of checkpoints if
    there are any. The layers hold their cache."""
    tables = []
    for group in groups:
        tensors: list[torch.Tensor] = []
        for index in sorted(group.layers):
            layer = layers[index]
            assert isinstance(layer, CachedAttention), "groups are of layers that keep tokens"
            tensors += layer.cached_tensors()
        tables.append(PageTable.of(tensors, group.layers_per_tensor))
    if num_checkpoints:
        states = [layer for layer in layers if isinstance(layer, StateLayer)]
        tables.append(PageTable.of([tensor for each in states for tensor in each.saved_tensors()]))
    return tables
