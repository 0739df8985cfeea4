"""The layout of a sequence's KV cache on one rank, in blocks of one pool.

Layers with full attention and MLA layers keep every token; a layer with a sliding window keeps the
blocks that its window can touch. Layers that keep the same tokens form groups (cache_groups.py),
and a block holds `block_size` tokens of one group. Layers of linear attention belong to no group:
each keeps one state of a sequence (states.py), in a slot for every sequence that may run. MLA keeps
one row for all heads, so every rank of tensor parallelism holds the whole row. KV heads are divided
over the ranks, and replicated if there are more ranks than heads. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from atom.sizing.attention.kinds import (
    AttentionFacts,
    CacheKind,
    EntriesAttention,
    GroupedAttention,
    LatentAttention,
    StateAttention,
)
from atom.sizing.cache_groups import (
    CachedLayer,
    CacheGroup,
    Grouping,
    group_layers,
    pack_layers,
)
from atom.sizing.layers import LayerCount, LayerFacts
from atom.sizing.mask_rule import CAUSAL, MaskRule, sliding_window
from atom.sizing.model_facts import ModelFacts
from atom.sizing.states import StateNet

USUAL_BLOCK_SIZE = 16  # default tokens of a block
_ROTATED_BYTES = 2  # of an element of the rotated key of an fp8 latent, which is bfloat16


@dataclass(frozen=True, slots=True)
class KvElement:
    """The size of a cached element. `scale_bytes`: per token, of each head's K, and V; with MLA of
    a token's latent, and of its indexer key."""

    size_bytes: int
    scale_bytes: int = 0


KV_ELEMENTS = {
    "bf16": KvElement(2),
    "fp32": KvElement(4),
    "fp8": KvElement(1, scale_bytes=4),  # float32
}


@dataclass(frozen=True, slots=True)
class Speculation:
    """The `tokens` proposed per sequence and step, by `draft`, by the model's own MTP layers, or
    (`by_layers` False) by no layers, from the text alone."""

    tokens: int
    draft: ModelFacts | None = None
    by_layers: bool = True

    def proposing_layers(self, facts: ModelFacts) -> tuple[LayerFacts, ...]:
        """Return the layers that have a KV cache in addition to the model's layers."""
        if not self.tokens or not self.by_layers:
            return ()
        return facts.mtp_layers if self.draft is None else self.draft.layers

    def proposing_counts(self, facts: ModelFacts) -> tuple[LayerCount, ...]:
        """Return the distinct layers of `proposing_layers` with their counts."""
        if not self.tokens or not self.by_layers:
            return ()
        return facts.mtp_counts if self.draft is None else self.draft.layer_counts


NO_SPECULATION = Speculation(0)


@dataclass(frozen=True, slots=True)
class KvTerm:
    """Layers that keep the same: bytes of one token of one of them on one rank.

    `divided`: a larger tensor-parallel size makes it smaller, up to the number of KV heads.
    """

    layers: int
    cache: CacheKind
    token_bytes: int
    mask: MaskRule
    divided: bool
    proposes: bool = False


@dataclass(frozen=True, slots=True)
class StateTerm:
    """Layers whose states are alike: bytes of one sequence's in one of them on one rank, and of the
    inputs of each of its drafts."""

    layers: int
    state_bytes: int
    draft_bytes: int


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Groups of layers over a pool of blocks. `token_bytes`: of one token in each of the pool's
    tensors, which hold the layers at that position of the groups; `lookahead`: tokens computed
    after the newest; `state_bytes`: of one sequence in all layers that keep a state; `draft_bytes`:
    of the inputs that these layers keep of one sequence's drafts.

    While a chunk of c tokens is computed, a group with a window of W holds blocks for W - 1 + c
    tokens. The excess over the window does not count for a sequence here: the scheduler cuts chunks
    to the free blocks, and `step_blocks` are reserved so that it need not cut them.
    """

    groups: tuple[CacheGroup, ...] = (CacheGroup(),)
    token_bytes: tuple[int, ...] = ()
    lookahead: int = 0
    state_bytes: int = 0
    draft_bytes: int = 0

    @property
    def bytes_per_token(self) -> int:
        """Sum the bytes of a token in a block, whichever group the block serves."""
        return sum(self.token_bytes)

    @property
    def growing_bytes_per_token(self) -> int:
        """Sum the bytes of a token in the layers that keep every token."""
        return self.bytes_per_token * self._num_growing

    @property
    def _num_growing(self) -> int:
        return sum(group.window is None for group in self.groups)

    def blocks_of_sequence(self, tokens: int, block_size: int) -> int:
        """Return how many blocks of the pool a sequence of `tokens` holds while it decodes."""
        return sum(group.blocks(tokens, block_size, self.lookahead) for group in self.groups)

    def window_blocks(self, tokens: int, block_size: int) -> int:
        """Return how many blocks of a sequence of `tokens` belong to groups with a window."""
        growing = self._num_growing * -(-tokens // block_size)
        return self.blocks_of_sequence(tokens, block_size) - growing

    def table_blocks(self, tokens: int, block_size: int) -> int:
        """Return the most blocks that a sequence of `tokens` holds in one group."""
        return max(group.blocks(tokens, block_size, self.lookahead) for group in self.groups)

    def sequence_bytes(self, tokens: int, block_size: int) -> int:
        """Return the bytes of a sequence of `tokens`, in whole blocks."""
        return self.blocks_of_sequence(tokens, block_size) * self.bytes_per_token * block_size

    def running_states_bytes(self, max_num_seqs: int) -> int:
        """Return the bytes of the states of all sequences that may run, and of the padding slot."""
        return (max_num_seqs + 1) * self.running_state_bytes

    @property
    def running_state_bytes(self) -> int:
        """Return the bytes that a running sequence has beside its tokens: states, and drafts'
        inputs."""
        return self.state_bytes + self.draft_bytes

    def step_blocks(self, step_tokens: int, block_size: int) -> int:
        """Return the blocks that a step with so many prompt tokens takes beside the sequences'
        blocks."""
        windows = len(self.groups) - self._num_growing
        return windows * -(-step_tokens // block_size)

    def longest_blocks(self, num_blocks: int, block_size: int, most_blocks: int) -> int:
        """Return the length in blocks of the longest sequence that fits, at most `most_blocks`."""
        low, high = 0, most_blocks
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_of_sequence(middle * block_size, block_size) <= num_blocks:
                low = middle
            else:
                high = middle - 1
        return low


def kv_layout(
    facts: ModelFacts,
    element: KvElement,
    tensor_parallel: int = 1,
    speculation: Speculation = NO_SPECULATION,
    block_size: int = USUAL_BLOCK_SIZE,
) -> KvLayout:
    """Return the layout of one rank's cache. block_size: tokens of a block. A block holds whole
    compressed entries, so its size decides the bytes of a token."""
    if any(isinstance(each.layer.attention, EntriesAttention) for each in facts.layer_counts):
        packed = _packed(facts, element, block_size)
        return KvLayout(packed.groups, packed.token_bytes, lookahead=speculation.tokens)
    counts = (*facts.layer_counts, *speculation.proposing_counts(facts))
    sizes = {
        id(alike.layer): _shared_and_own(alike.layer.attention, element, tensor_parallel)
        for alike in counts
        if alike.layer.attention.keeps_tokens
    }
    # Scales are shared like their elements if all layers have as many per element.
    apart = len({Fraction(own, shared) for shared, own in sizes.values()}) > 1
    kinds: dict[MaskRule, list[CachedLayer]] = {}
    for index, layer in enumerate((*facts.layers, *speculation.proposing_layers(facts))):
        if layer.attention.keeps_tokens:
            kind = kinds.setdefault(layer.attention.mask, [])
            shared, own = sizes[id(layer)]
            cached = (shared, own) if apart else (shared + own, 0)
            kind.append(CachedLayer(index, *cached))
    grouping = group_layers(kinds, facts.max_position_embeddings)
    terms, drafts = state_terms(facts, tensor_parallel), speculation.tokens
    return KvLayout(
        grouping.groups,
        grouping.token_bytes,
        lookahead=drafts,
        state_bytes=sum(term.layers * term.state_bytes for term in terms),
        draft_bytes=sum(term.layers * term.draft_bytes for term in terms) * drafts,
    )


def _packed(facts: ModelFacts, element: KvElement, block_size: int) -> Grouping:
    """Pack layers with compressed entries. A layer has two caches in a row: its window, long enough
    for the next entry of any layer, and its entries. A layer without entries has only the
    window."""
    growing: list[CachedLayer] = []
    windows: list[CachedLayer] = []
    reach = 0
    for layer in facts.layers:
        attention, at = layer.attention, len(growing) + len(windows)
        assert isinstance(attention, EntriesAttention), "all layers of such a model are alike"
        net = attention.compressed
        windows.append(CachedLayer(at, _window_bytes(attention, element)))
        if net.rate:
            growing.append(CachedLayer(at + 1, _entry_bytes(attention, element, block_size)))
        reach = max(reach, attention.mask.size, net.summed_tokens)
    return pack_layers(growing, windows, sliding_window(reach), facts.max_position_embeddings)


def _window_bytes(attention: EntriesAttention, element: KvElement) -> int:
    """Compute the bytes of a token in the window of a layer that has entries, too."""
    return attention.compressed.window_elements(attention.head_dim) * element.size_bytes


def _entry_bytes(attention: EntriesAttention, element: KvElement, block_size: int) -> int:
    """Compute the bytes of a token in a layer's entries: its share of a block's entries."""
    net = attention.compressed
    elements = net.entries_of_block(block_size) * net.entry_elements(attention.head_dim)
    return -(-elements * element.size_bytes // block_size)


def kv_bytes_per_token(facts: ModelFacts, element_bytes: int, tensor_parallel: int = 1) -> int:
    """Return the bytes that all layers cache of one token, in a cache without scales and
    padding."""
    terms = kv_terms(facts, KvElement(element_bytes), tensor_parallel)
    return sum(term.layers * term.token_bytes for term in terms)


def kv_terms(
    facts: ModelFacts,
    element: KvElement,
    tensor_parallel: int = 1,
    speculation: Speculation = NO_SPECULATION,
    block_size: int = USUAL_BLOCK_SIZE,
) -> tuple[KvTerm, ...]:
    """Return the terms of the layout's sum, for people: one term for all layers that cache the
    same."""
    proposing = speculation.proposing_counts(facts)
    return (
        *_packed_terms(facts.layer_counts, element, block_size),
        *_terms(facts.layer_counts, element, tensor_parallel, proposes=False),
        *_terms(proposing, element, tensor_parallel, proposes=True),
    )


def state_terms(facts: ModelFacts, ranks: int = 1) -> tuple[StateTerm, ...]:
    """Return the terms of the sum of a sequence's states: one term for all layers with equal
    states."""
    counts: dict[StateNet, int] = {}
    for alike in facts.layer_counts:
        attention = alike.layer.attention
        if isinstance(attention, StateAttention):
            counts[attention.net] = counts.get(attention.net, 0) + alike.count
    return tuple(
        StateTerm(number, state.state_bytes(ranks), state.shape.draft_bytes(ranks))
        for state, number in counts.items()
    )


def _terms(
    layers: Iterable[LayerCount], element: KvElement, ranks: int, *, proposes: bool
) -> Iterator[KvTerm]:
    counts: dict[AttentionFacts, int] = {}
    for alike in layers:
        attention = alike.layer.attention
        if attention.keeps_tokens and not isinstance(attention, EntriesAttention):
            counts[attention] = counts.get(attention, 0) + alike.count
    for attention, number in counts.items():
        yield KvTerm(
            layers=number,
            cache=attention.cache,
            token_bytes=_token_bytes(attention, element, ranks),
            mask=attention.mask,
            divided=not isinstance(attention, LatentAttention),
            proposes=proposes,
        )


def _packed_terms(
    layers: Iterable[LayerCount], element: KvElement, block_size: int
) -> Iterator[KvTerm]:
    """Yield the entries of each kind of layer that has any, and its window."""
    counts: dict[EntriesAttention, int] = {}
    for alike in layers:
        attention = alike.layer.attention
        if isinstance(attention, EntriesAttention):
            counts[attention] = counts.get(attention, 0) + alike.count
    for attention, number in counts.items():
        window = _window_bytes(attention, element)
        entries = _entry_bytes(attention, element, block_size)
        if entries:
            yield KvTerm(number, CacheKind.ENTRIES, entries, CAUSAL, divided=False)
        yield KvTerm(number, CacheKind.WINDOW, window, attention.mask, divided=False)


def _shared_and_own(attention: AttentionFacts, element: KvElement, ranks: int) -> tuple[int, int]:
    """Divide the bytes of a token in one layer into elements and, of keys and values, scales."""
    size = _token_bytes(attention, element, ranks)
    scales = 0
    if isinstance(attention, GroupedAttention):
        keys = 2 * attention.heads.kv_per_rank(ranks) + (attention.softmax.index is not None)
        scales = keys * element.scale_bytes
    return size - scales, scales


def _token_bytes(attention: AttentionFacts, element: KvElement, ranks: int) -> int:
    """Compute the bytes of a token in one layer."""
    if isinstance(attention, GroupedAttention):
        row = attention.head_dim * element.size_bytes + element.scale_bytes
        kept = 2 * attention.heads.kv_per_rank(ranks) * row
        if attention.softmax.index is None:
            return kept
        return kept + attention.softmax.index.dim * element.size_bytes + element.scale_bytes
    assert isinstance(attention, LatentAttention), "no other kind keeps a row of each token"
    latent, index = attention.latent, attention.latent.own_index
    rotated_bytes = _ROTATED_BYTES if element.scale_bytes else element.size_bytes
    entry = latent.kv_rank * element.size_bytes + element.scale_bytes
    entry += latent.rope_dim * rotated_bytes
    if index is None:
        return entry
    return entry + index.dim * element.size_bytes + element.scale_bytes
