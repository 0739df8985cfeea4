"""A model with one layer of each kind: it needs the kernels of all layers, with a fraction of them.

ModelRunner calls it for a pass whose results are discarded. A layer's kernels depend on its spec,
on the group of the cache that it reads, on the previous layer, whose sum it may add, and on whether
it is the last.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from atom.models.decoder.causal_lm import CausalLM
from atom.sizing.attention.kinds import SharedKvAttention


@contextmanager
def one_of_each_kind(model: CausalLM, groups: Sequence[Sequence[int]]) -> Iterator[None]:
    """Let the model run through one layer of each kind within the context; groups: of layers that
    share block tables."""
    decoder, group_of = model.model, {at: n for n, group in enumerate(groups) for at in group}
    layers = decoder.layers
    specs = model.spec.layers
    kinds_of = (spec.facts.attention for spec in specs)
    lending = {kind.target for kind in kinds_of if isinstance(kind, SharedKvAttention)}
    kinds = [(spec, group_of.get(index, 0), index in lending) for index, spec in enumerate(specs)]
    decoder.layers = nn.ModuleList(layers[index] for index in kept_layers(kinds))
    try:
        yield
    finally:
        decoder.layers = layers


def kept_layers(kinds: Sequence[object]) -> list[int]:
    """Return the first layer of each kind after each other kind, and the last layer, so that each
    kept layer follows one like its own predecessor. kinds: equal for layers of the same kind."""
    numbers = [kinds.index(kind) for kind in kinds]
    kept, met = [0], set[tuple[int, int]]()
    for index, pair in enumerate(itertools.pairwise(numbers), start=1):
        if pair in met and index < len(kinds) - 1:
            continue
        met.add(pair)
        kept += [index] if numbers[kept[-1]] == pair[0] else [index - 1, index]
    return kept
