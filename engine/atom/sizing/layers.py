"""The layers of a decoder-only model as sizes: attention with its kind of cache, and its MLP.

Values only: the readers of model families (families/) build them; weights.py and kv_layout.py
count their bytes. A model is its layers in order; if only sums matter, the distinct layers with
their counts.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from atom.sizing.compressed import Compressed
from atom.sizing.mask_rule import CAUSAL, MaskRule
from atom.sizing.quantization import Quantization
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

    `query_rank` None: queries are not compressed. `index_heads`, `index_dim` and `index_top_k` (the
    number of selected tokens): the indexer of sparse attention (DeepSeek-V3.2), 0 without one.
    `shares_index`: the layer uses the selection of the last indexer before it (GLM-5.2).
    """

    query_rank: int | None
    kv_rank: int
    nope_dim: int  # of a head, without position
    rope_dim: int  # of a head, rotated; the key's is shared by all heads
    value_dim: int
    index_heads: int = 0
    index_dim: int = 0
    index_top_k: int = 0
    shares_index: bool = False

    @property
    def cached_dim(self) -> int:
        """Return the number of elements of one token's row: the latent and the shared rotated
        key."""
        return self.kv_rank + self.rope_dim


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFacts:
    """The attention of a layer. `head_dim` is that of a query; `mask`: the tokens that a query
    attends to.

    - `qk_norm`: an RMSNorm over each head of queries and keys, after their rotation with
      `qk_norm_rotated`; `qk_norm_whole`: over all heads together.
    - `sinks`: one learned logit per head.
    - `reads_embedding`: q, k and v see the token's embedding beside the hidden state (EAGLE-3).
    - `output_gate`: the queries' matrix also makes a gate of each head's result, after its query.
    - `state`: linear attention, which keeps no tokens; heads and `head_dim` are its queries'.
    - `narrow_values`: elements of a head's value if they are fewer than `head_dim`, else 0; the
      cache keeps as many as of a key.
    - `values_are_keys`: there is no matrix of values; the values are the keys before their norm.
    - `value_norm`: an RMSNorm without a weight over each head of values.
    - `fused`: checkpoints have one matrix of queries, keys and values.
    - `kv_sharing_target`: the layer whose keys and values this layer attends to if it has none
      itself (Gemma 4).
    - `compressed`: attention to a window of `mask`, and to entries (DeepSeek V4).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    mask: MaskRule = CAUSAL
    latent: Latent | None = None
    qk_norm: bool = False
    qk_norm_rotated: bool = False
    qk_norm_whole: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    sinks: bool = False
    reads_embedding: bool = False
    output_gate: bool = False
    rope: Rope = _ONE_ROPE
    state: StateNet | None = None
    fused: bool = False
    narrow_values: int = 0
    values_are_keys: bool = False
    value_norm: bool = False
    kv_sharing_target: int | None = None
    compressed: Compressed | None = None

    @property
    def keeps_tokens(self) -> bool:
        """Return whether the layer has keys and values, or latents, in the cache itself."""
        return self.state is None and self.kv_sharing_target is None

    @property
    def value_dim(self) -> int:
        """Return the number of elements of a head's value."""
        return self.narrow_values or self.head_dim

    @property
    def rope_dim(self) -> int:
        """Return the elements of a head that its rope's table covers."""
        if self.compressed is not None:
            return self.compressed.rope_dim
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def cache(self) -> CacheKind:
        if self.state is not None:
            return CacheKind.STATE
        if self.latent is not None:
            return CacheKind.LATENT
        return CacheKind.FULL if self.mask.window is None else CacheKind.WINDOW

    def kv_heads_per_rank(self, tensor_parallel: int = 1) -> int:
        """Return the KV heads of one rank: divided while there are enough, replicated beyond
        that."""
        return max(1, self.num_kv_heads // tensor_parallel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The routed experts of one layer, each an MLP of `intermediate_size`.

    `shared_intermediate_size`: of the experts that every token goes through, together;
    `shared_gate`: a row decides for each token how much of them.
    `router_bias` is a bias of the router's matrix; `router_correction` one float32 per expert;
    `router_scales`: a factor for each element that the router sees, and one for each expert
    (Gemma 4). `by_token`: which experts a token goes through is looked up by its id (DeepSeek V4).
    """

    count: int
    per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    shared_gate: bool = False
    bias: bool = False
    router_bias: bool = False
    router_correction: bool = False
    router_scales: bool = False
    by_token: bool = False


class Stacking(enum.StrEnum):
    """The form of the experts' matrices in a checkpoint; a plan's JSON has the name."""

    APART = "apart"  # a tensor each, outputs first
    IN_TURN = "in turn"  # one of all, inputs first, gate_proj and up_proj in turn in a single one
    SIDE_BY_SIDE = "side by side"  # the same, gates before ups
    OUTPUTS_FIRST = "outputs first"  # one of all, outputs before inputs, gates before ups
    AS_FOUND = "as found"  # apart, or plain ones in one of all, outputs first

    @property
    def in_modules(self) -> bool:
        """Return whether quantised experts have their own modules."""
        return self in (Stacking.APART, Stacking.AS_FOUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsBlock:
    """The module of a layer that holds router and experts, and its parts, as checkpoints name them.

    `matrices`: of an expert, gate, up and down. `dense`: the module of a layer without experts.
    `stacked_by`: methods of quantisation whose checkpoints have one tensor of all experts, and
    their scales; `parted_by`: methods that first make each expert's matrices modules. `correction`:
    of the balance, if it is not below the router; in one row of a matrix with `correction_in_row`.
    """

    name: str = "mlp"
    dense: str = "mlp"
    router: str = "gate"
    shared: str = "shared_experts"
    matrices: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    stacking: Stacking = Stacking.APART
    stacked_by: tuple[str, ...] = ()
    parted_by: tuple[str, ...] = ()
    correction: str = ""
    correction_in_row: bool = False

    @property
    def correction_name(self) -> str:
        """Return the router's correction as a checkpoint names it, below the layer."""
        return f"{self.name}.{self.correction or f'{self.router}.e_score_correction_bias'}"

    def written_by(self, method: str) -> ExpertsBlock:
        """Return the block in the form of a quantisation method's checkpoints."""
        return replace(self, stacking=Stacking.APART) if method in self.parted_by else self


PLAIN_BLOCK = ExpertsBlock()


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpFacts:
    """A gated MLP of `intermediate_size`, routed `experts`, or both in parallel; 0 and None for
    neither.

    `gated` False: the MLP and its experts have an up matrix without a gate. `fused`: checkpoints
    have one matrix of gates and ups, also for shared experts.
    """

    intermediate_size: int = 0
    bias: bool = False
    gated: bool = True
    fused: bool = False
    experts: Experts | None = None

    @property
    def is_beside(self) -> bool:
        """Return whether the layer has both an MLP and experts."""
        return self.experts is not None and bool(self.intermediate_size)

    @property
    def is_absent(self) -> bool:
        """Return whether the layer ends after its attention."""
        return self.experts is None and not self.intermediate_size


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """The facts of one layer. `norms`: RMSNorms of the hidden size in it; `output_factor`: whether
    a scalar multiplies its output; `per_layer_input`: elements of this layer's own embedding of
    each token (Gemma 4), 0 without; `streams`: residual streams that hyper-connections mix
    (DeepSeek V4), 0 for a single ordinary one.

    `formats`: of projections (weights.py) by name that are not in the model's own element type.
    """

    attention: AttentionFacts
    mlp: MlpFacts
    norms: int = 2
    output_factor: bool = False
    per_layer_input: int = 0
    streams: int = 0
    formats: tuple[tuple[str, Quantization], ...] = ()

    def format_of(self, name: str) -> Quantization | None:
        """Format of the projection of that name, None for the model's own element type."""
        return next((stored for known, stored in self.formats if known == name), None)


@dataclass(frozen=True, slots=True)
class LayerCount:
    """A group of `count` equal layers of a model, at any positions."""

    layer: LayerFacts
    count: int


def count_layers(
    layers: Sequence[LayerFacts],
) -> tuple[tuple[LayerFacts, ...], tuple[LayerCount, ...]]:
    """Make equal layers one object, and count them in the order of their first.

    Such layers can be distinguished by identity, which is much cheaper than their hash.
    """
    alike: dict[LayerFacts, list[LayerFacts]] = {}
    for layer in layers:
        alike.setdefault(layer, []).append(layer)
    known = {id(layer): same[0] for same in alike.values() for layer in same}
    shared = tuple([known[id(layer)] for layer in layers])
    return shared, tuple([LayerCount(same[0], len(same)) for same in alike.values()])
