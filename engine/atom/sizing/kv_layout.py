"""What the KV cache keeps of a sequence on one rank: bytes that grow, and bytes that do not.

Layers with full attention and MLA layers keep every token; a layer with a sliding window keeps the
blocks that its window can touch. MLA keeps one row for all heads, so every rank of tensor
parallelism holds all of it; KV heads are divided, and replicated when there are more ranks. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from atom.sizing.layers import AttentionFacts, CacheKind, LayerFacts
from atom.sizing.model_facts import ModelFacts

_INDEX_SCALE_BYTES = 4  # float32, beside the fp8 row of an indexer (DeepSeek-V3.2)
_INDEX_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class KvElement:
    """One element of the cache. `scale_bytes`: of each head's K, and V, of each token.

    MLA rows have none: their fp8 scale is one per layer.
    """

    size_bytes: int
    scale_bytes: int = 0


KV_ELEMENTS = {
    "bf16": KvElement(2),
    "fp32": KvElement(4),
    "fp8": KvElement(1, scale_bytes=4),  # a float32 scale per token and head, for K and for V
}


@dataclass(frozen=True, slots=True)
class Speculation:
    """`tokens` drafted per sequence and step, by `draft` or by the model's own draft layers."""

    tokens: int
    draft: ModelFacts | None = None

    def drafting_layers(self, facts: ModelFacts) -> tuple[LayerFacts, ...]:
        """The layers that keep a KV cache of their own beside the model's."""
        return facts.drafts if self.draft is None else self.draft.layers


NO_SPECULATION = Speculation(0)


@dataclass(frozen=True, slots=True)
class KvTerm:
    """Layers that keep the same: bytes of one token of one of them on one rank.

    `divided`: a larger tensor-parallel size makes it smaller, up to the number of KV heads.
    """

    layers: int
    cache: CacheKind
    token_bytes: int
    window: int | None
    divided: bool
    drafts: bool = False


@dataclass(frozen=True, slots=True)
class WindowedKv:
    """Layers that keep the newest `tokens` tokens, `bytes_per_token` of each."""

    bytes_per_token: int
    tokens: int

    def blocks(self, block_size: int) -> int:
        """Blocks that the window can touch at most: it starts anywhere in a block."""
        return 1 - (1 - self.tokens) // block_size


@dataclass(frozen=True, slots=True)
class KvLayout:
    """`bytes_per_token` of the layers that keep every token, and the layers that do not."""

    bytes_per_token: int
    windows: tuple[WindowedKv, ...] = ()

    @property
    def all_bytes_per_token(self) -> int:
        """Of a token that every layer still keeps."""
        return self.bytes_per_token + sum(window.bytes_per_token for window in self.windows)

    def blocks_of_sequence(self, tokens: int, block_size: int) -> int:
        """Blocks of the layers that keep every token; where none does, of the widest window."""
        blocks = -(-tokens // block_size)
        if self.bytes_per_token or not self.windows:
            return blocks
        return min(blocks, max(window.blocks(block_size) for window in self.windows))

    def sequence_bytes(self, tokens: int, block_size: int) -> int:
        """What a sequence of `tokens` occupies, in whole blocks of every layer."""
        blocks = -(-tokens // block_size)
        windowed = sum(
            window.bytes_per_token * min(blocks, window.blocks(block_size))
            for window in self.windows
        )
        return block_size * (self.bytes_per_token * blocks + windowed)

    def longest_blocks(self, size_bytes: int, block_size: int, most_blocks: int) -> int:
        """Blocks of the longest sequence that `size_bytes` hold, at most `most_blocks`."""
        low, high = 0, most_blocks
        while low < high:
            middle = (low + high + 1) // 2
            if self.sequence_bytes(middle * block_size, block_size) <= size_bytes:
                low = middle
            else:
                high = middle - 1
        return low


def kv_layout(
    facts: ModelFacts,
    element: KvElement,
    tensor_parallel: int = 1,
    speculation: Speculation = NO_SPECULATION,
) -> KvLayout:
    """The cache of one rank."""
    growing = 0
    windows: dict[int, int] = {}
    for term in kv_terms(facts, element, tensor_parallel, speculation):
        size = term.layers * term.token_bytes
        if term.window is None:
            growing += size
        else:
            tokens = term.window + speculation.tokens
            windows[tokens] = windows.get(tokens, 0) + size
    return KvLayout(growing, tuple(WindowedKv(size, span) for span, size in windows.items()))


def kv_bytes_per_token(facts: ModelFacts, element_bytes: int, tensor_parallel: int = 1) -> int:
    """Bytes of one token that every layer keeps, in a cache without scales."""
    return kv_layout(facts, KvElement(element_bytes), tensor_parallel).all_bytes_per_token


def kv_terms(
    facts: ModelFacts,
    element: KvElement,
    tensor_parallel: int = 1,
    speculation: Speculation = NO_SPECULATION,
) -> tuple[KvTerm, ...]:
    """What the layout is the sum of, for people: one term for all layers that keep the same."""
    drafting = speculation.drafting_layers(facts) if speculation.tokens else ()
    return (
        *_terms(facts.layers, element, tensor_parallel, drafts=False),
        *_terms(drafting, element, tensor_parallel, drafts=True),
    )


def _terms(
    layers: Iterable[LayerFacts], element: KvElement, ranks: int, *, drafts: bool
) -> Iterator[KvTerm]:
    counts: dict[AttentionFacts, int] = {}
    for layer in layers:
        counts[layer.attention] = counts.get(layer.attention, 0) + 1
    for attention, number in counts.items():
        yield KvTerm(
            layers=number,
            cache=attention.cache,
            token_bytes=_token_bytes(attention, element, ranks),
            window=attention.window,
            divided=attention.latent is None,
            drafts=drafts,
        )


def _token_bytes(attention: AttentionFacts, element: KvElement, ranks: int) -> int:
    """Of one layer."""
    latent = attention.latent
    if latent is None:
        row = attention.head_dim * element.size_bytes + element.scale_bytes
        return 2 * attention.kv_heads_per_rank(ranks) * row
    size = latent.cached_dim * element.size_bytes
    if latent.index_dim:
        row = latent.index_dim + _INDEX_SCALE_BYTES
        size += -(-row // _INDEX_ALIGNMENT) * _INDEX_ALIGNMENT
    return size
