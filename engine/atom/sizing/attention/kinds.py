"""The attention of a layer, as one of five kinds, each with the facts of that kind alone.

`AttentionFacts` is their sum: a reader of config.json builds one kind, and users match on it. All
kinds have heads and a kind of cache. Values only, as in layers.py. The kinds are msgspec's structs:
a configuration goes to the engine's processes as JSON, which has the kind's name as a tag.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from atom.sizing.attention.compressed import Compressed
from atom.sizing.attention.indexer import Indexer, SharedIndexer, SpanIndexer
from atom.sizing.mask_rule import CAUSAL, MaskRule
from atom.sizing.states import StateNet


class CacheKind(enum.StrEnum):
    """The form in which a layer caches earlier tokens."""

    FULL = "full attention"  # K and V of every token, by KV head
    WINDOW = "sliding window"  # K and V of the newest tokens
    LATENT = "MLA latent"  # one compressed row of every token, for all heads
    ENTRIES = "compressed entries"  # one row per several tokens, for all heads
    STATE = "linear attention"  # one state, for any number of tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): ranks and head sizes.

    `query_rank` None: queries are not compressed. `index`: the indexer of sparse attention
    (DeepSeek-V3.2), the last one before this layer (GLM-5.2), or None without one.
    """

    query_rank: int | None
    kv_rank: int
    nope_dim: int  # of a head, without position
    rope_dim: int  # of a head, rotated; the key's is shared by all heads
    value_dim: int
    index: Indexer | SharedIndexer | None = None

    @property
    def cached_dim(self) -> int:
        """Return the number of elements of one token's row: the latent and the shared rotated
        key."""
        return self.kv_rank + self.rope_dim

    @property
    def own_index(self) -> Indexer | None:
        """Return the layer's own indexer, whose keys it caches; None if it has none."""
        return self.index if isinstance(self.index, Indexer) else None


@dataclass(frozen=True, slots=True)
class Rope:
    """A kind of rope: layers of one `kind` share a table of cosines and sines, a row for each
    position.

    `turns` False: no element rotates, at any position. `warms`: queries grow with their position,
    by a table too.
    """

    kind: str = "all layers"
    turns: bool = True
    warms: bool = False


_ONE_ROPE = Rope()
NO_ROPE = Rope("none", turns=False)


class QkNorm(enum.Enum):
    """The RMSNorms of queries and keys."""

    NONE = enum.auto()
    HEADS = enum.auto()  # over each head
    ROTATED_HEADS = enum.auto()  # over each head, after its rotation (Hunyuan)
    WHOLE = enum.auto()  # over all heads together (OLMo, MiniMax-M2)

    @property
    def of_heads(self) -> bool:
        """Return whether each head has a norm of its own."""
        return self in (QkNorm.HEADS, QkNorm.ROTATED_HEADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrices:
    """The matrices of grouped queries, keys and values.

    - `fused`: checkpoints have one matrix of queries, keys and values.
    - `output_gate`: the queries' matrix also makes a gate of each head's result, after its query.
    - `reads_embedding`: q, k and v see the token's embedding beside the hidden state (EAGLE-3).
    """

    qkv_bias: bool = False
    output_bias: bool = False
    fused: bool = False
    output_gate: bool = False
    reads_embedding: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The values of grouped heads.

    - `narrow_dim`: elements of a head's value if they are fewer than a key's, else 0; the cache
      keeps as many as of a key.
    - `are_keys`: there is no matrix of values; the values are the keys before their norm.
    - `normed`: an RMSNorm without a weight over each head of values.
    """

    narrow_dim: int = 0
    are_keys: bool = False
    normed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """The terms of a grouped head's softmax, of the tokens that its mask admits.

    - `sinks`: there is one learned logit per head beside those of tokens.
    - `index`: the indexer that selects the spans of tokens in it; None if it has all tokens.
    """

    sinks: bool = False
    index: SpanIndexer | None = None


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a layer. `size`: elements of a query's and of a key's."""

    count: int
    kv_count: int
    size: int

    def kv_per_rank(self, tensor_parallel: int = 1) -> int:
        """Return the KV heads of one rank: divided while there are enough, replicated beyond
        that."""
        return max(1, self.kv_count // tensor_parallel)


class _Attending(msgspec.Struct, frozen=True, kw_only=True):
    """A layer that attends to tokens. `mask`: the tokens that a query attends to."""

    heads: Heads
    mask: MaskRule = CAUSAL
    rope: Rope = _ONE_ROPE

    @property
    def num_heads(self) -> int:
        return self.heads.count

    @property
    def num_kv_heads(self) -> int:
        return self.heads.kv_count

    @property
    def head_dim(self) -> int:
        return self.heads.size

    @property
    def rope_dim(self) -> int:
        """Return the elements of a head that its rope's table covers."""
        return self.heads.size

    @property
    def keeps_tokens(self) -> bool:
        """Return whether the layer has keys and values, or latents, in the cache itself."""
        return True

    @property
    def cache(self) -> CacheKind:
        return CacheKind.FULL if self.mask.window is None else CacheKind.WINDOW


class GroupedAttention(_Attending, frozen=True, kw_only=True, tag=True):
    """Grouped-query attention. `qk_norm`: of queries and keys, before their products."""

    qk_norm: QkNorm = QkNorm.NONE
    matrices: Matrices = Matrices()
    values: Values = Values()
    softmax: Softmax = Softmax()

    @property
    def value_dim(self) -> int:
        """Return the number of elements of a head's value."""
        return self.values.narrow_dim or self.heads.size


class SharedKvAttention(_Attending, frozen=True, kw_only=True, tag=True):
    """Queries that attend to the keys and values of the earlier layer `target` (Gemma 4).
    `qk_norm`: of the queries."""

    target: int
    qk_norm: QkNorm = QkNorm.NONE
    matrices: Matrices = Matrices()

    @property
    def keeps_tokens(self) -> bool:
        return False


class LatentAttention(_Attending, frozen=True, kw_only=True, tag=True):
    """Attention over latents. `down_bias`: of the matrices that compress."""

    latent: Latent
    down_bias: bool = False
    output_bias: bool = False

    @property
    def rope_dim(self) -> int:
        return self.latent.rope_dim

    @property
    def cache(self) -> CacheKind:
        return CacheKind.LATENT


class EntriesAttention(_Attending, frozen=True, kw_only=True, tag=True):
    """Attention to a window of `mask` and to entries, with sinks (DeepSeek V4)."""

    compressed: Compressed

    @property
    def rope_dim(self) -> int:
        return self.compressed.rope_dim


class StateAttention(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Linear attention, which keeps a state and no tokens; its heads are those of values."""

    net: StateNet

    @property
    def mask(self) -> MaskRule:
        return CAUSAL

    @property
    def num_heads(self) -> int:
        return self.net.value_heads

    @property
    def num_kv_heads(self) -> int:
        return self.net.key_heads

    @property
    def head_dim(self) -> int:
        return self.net.key_dim

    @property
    def keeps_tokens(self) -> bool:
        return False

    @property
    def cache(self) -> CacheKind:
        return CacheKind.STATE


AttentionFacts = (
    GroupedAttention | SharedKvAttention | LatentAttention | EntriesAttention | StateAttention
)
