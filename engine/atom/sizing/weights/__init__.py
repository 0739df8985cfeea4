"""The bytes of a model's weights on one rank, by part.

Matrices are divided over the ranks by heads, by MLP width or by experts; norms, routers and the
compressing projections of latent attention are on every rank. Scales are counted on a rank's own
share of a matrix. Pure; the shapes come from layer_matrices.py, the formats from quantization/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from atom.sizing.attention.compressed_weights import (
    compressed_floats,
    compressed_vectors,
    stream_floats,
    stream_head_floats,
)
from atom.sizing.attention.kinds import (
    AttentionFacts,
    EntriesAttention,
    GroupedAttention,
    LatentAttention,
    QkNorm,
    SharedKvAttention,
    StateAttention,
)
from atom.sizing.layers import (
    LayerCount,
    LayerFacts,
)
from atom.sizing.projection import Projection, Split
from atom.sizing.states.weights import state_floats, state_vectors
from atom.sizing.weights.layer_matrices import (
    ATTENTION_MODULES,
    PER_LAYER_INPUT,
    WeightFacts,
    stored_projections,
)

_FLOAT32_BYTES = 4
_TABLE_BYTES = 8  # of an expert's number in the table by token
_INPUTS = "inputs of each layer"
_BESIDE_LAYERS = "positions, types and head"
ENCODER = "image encoder"


@dataclass(frozen=True, slots=True)
class Sharding:
    """The division of a model. `expert_parallel`: each rank has whole experts, instead of a part of
    each, also over `sharing` ranks that each have all other matrices, and with `redundant` second
    copies. `expert_unit`: both sizes of a quantised expert on a rank are padded to multiples of
    it."""

    tensor_parallel: int = 1
    expert_parallel: bool = False
    sharing: int = 1
    redundant: int = 0
    expert_unit: int = 1

    @property
    def expert_ranks(self) -> int:
        """Return the number of ranks that divide the experts as wholes; 1 without expert
        parallelism."""
        return self.tensor_parallel * self.sharing if self.expert_parallel else 1


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Bytes of one part of the model on one rank. `sharded` False: every rank holds all of it."""

    name: str
    size_bytes: int
    sharded: bool


def weight_parts(
    facts: WeightFacts, element_bytes: int | None, sharding: Sharding, *, with_mtp: bool
) -> tuple[WeightPart, ...]:
    """List every part that the model has; `element_bytes` None keeps the checkpoint's own
    formats."""
    ranks = sharding.tensor_parallel
    element = facts.weight_dtype_bytes if element_bytes is None else element_bytes
    fallback = facts.inputs.fallback
    if fallback is not None:
        size = fallback.elements * element + fallback.buffer_bytes
        return (WeightPart("all weights", size, False),)
    tables = 1 if facts.tie_word_embeddings else 2
    vocabulary = _ceil(facts.vocab_size, ranks) * facts.hidden_size * tables * element
    sizes: dict[str, int] = {"embedding and head": vocabulary}
    inputs = sum(alike.count * alike.layer.per_layer_input for alike in facts.layer_counts)
    if inputs:
        sizes["embedding of each layer"] = (
            _ceil(facts.inputs.per_layer_vocab_size, ranks) * inputs * element
        )
        norm = next(alike.layer.per_layer_input for alike in facts.layer_counts)
        sizes[_INPUTS] = (inputs * facts.hidden_size + norm) * element
    for alike in facts.layer_counts:
        _add_layers(sizes, facts, alike, element_bytes, sharding)
    encoder = facts.inputs.encoder
    last_norm = facts.hidden_size if encoder is None else 0
    sizes["norms and routers"] = sizes.pop("norms and routers") + last_norm * element
    sizes[_BESIDE_LAYERS] = 0 if encoder is None else encoder.elements(facts.hidden_size) * element
    streams = facts.layer_counts[0].layer.streams
    joining = stream_head_floats(streams, facts.hidden_size)
    sizes["norms and routers"] += joining * (element_bytes or _FLOAT32_BYTES)
    sizes["joining projection"] = facts.inputs.joined_size * facts.hidden_size * element
    vision = facts.vision
    sizes[ENCODER] = 0 if vision is None else vision.parameters * element
    replicated = {
        *("compressing projections", _INPUTS, "norms and routers", "joining projection"),
        *(ENCODER, _BESIDE_LAYERS),
    }
    parts = [WeightPart(name, size, name not in replicated) for name, size in sizes.items() if size]
    if with_mtp and facts.mtp_counts:
        size = sum(_mtp_bytes(facts, alike, element_bytes, sharding) for alike in facts.mtp_counts)
        parts.append(WeightPart("draft layers", size, True))
    return tuple(parts)


def _mtp_bytes(
    facts: WeightFacts, alike: LayerCount, element_bytes: int | None, sharding: Sharding
) -> int:
    """Return the bytes of a multi-token prediction layer: a layer, the matrix that joins hidden
    state and embedding, and three norms. Embedding and head are the model's own."""
    sizes: dict[str, int] = {}
    _add_layers(sizes, facts, alike, element_bytes, sharding)
    element = facts.weight_dtype_bytes if element_bytes is None else element_bytes
    joining = (2 * facts.hidden_size + 3) * facts.hidden_size * element
    return sum(sizes.values()) + alike.count * joining


def _add_layers(
    sizes: dict[str, int],
    facts: WeightFacts,
    alike: LayerCount,
    element_bytes: int | None,
    sharding: Sharding,
) -> None:
    layer = alike.layer
    for matrix in stored_projections(facts, layer):
        part = _part_of(matrix)
        size = _projection_bytes(facts, matrix, element_bytes, sharding)
        sizes[part] = sizes.get(part, 0) + alike.count * size
    element = facts.weight_dtype_bytes if element_bytes is None else element_bytes
    vectors = _vector_elements(layer, facts.hidden_size, sharding.tensor_parallel) * element
    experts, attention = layer.mlp.experts, layer.attention
    if experts is not None and experts.router_correction:
        vectors += experts.count * (element_bytes or _FLOAT32_BYTES)
    if isinstance(attention, StateAttention):  # how fast each head forgets
        floats = state_floats(attention.net, sharding.tensor_parallel)
        vectors += floats * (element_bytes or _FLOAT32_BYTES)
    floats = stream_floats(layer.streams, facts.hidden_size)
    if isinstance(attention, EntriesAttention):
        floats += compressed_floats(attention.compressed, attention.head_dim)
    vectors += floats * (element_bytes or _FLOAT32_BYTES)
    if experts is not None and experts.by_token:
        vectors += facts.vocab_size * experts.per_token * _TABLE_BYTES
    rest = "norms and routers"
    sizes[rest] = sizes.get(rest, 0) + alike.count * vectors


def _part_of(matrix: Projection) -> str:
    if matrix.name.startswith("self_attn.compressor."):
        return "compressing projections"
    if not matrix.quantizable:
        return "norms and routers"
    if matrix.copies > 1:
        return "routed experts"
    if matrix.name.startswith(PER_LAYER_INPUT):
        return _INPUTS
    if ".shared_" in matrix.name:
        return "shared experts"
    if matrix.name.startswith(ATTENTION_MODULES):
        return "compressing projections" if matrix.split is Split.NOTHING else "attention"
    return "MLP"


def _projection_bytes(
    facts: WeightFacts,
    matrix: Projection,
    element_bytes: int | None,
    sharding: Sharding,
) -> int:
    ranks, copies = sharding.tensor_parallel, matrix.copies
    if copies > 1 and sharding.expert_parallel:
        ranks, copies = 1, _ceil(copies + sharding.redundant, sharding.expert_ranks)
    rows, columns = matrix.on_rank(ranks)
    element = facts.weight_dtype_bytes if element_bytes is None else element_bytes
    if matrix.quantization is None or matrix.absorbed or element_bytes is not None:
        size = rows * columns * element
    else:
        if copies > 1 and sharding.expert_unit > 1:
            unit = sharding.expert_unit
            rows, columns = _ceil(rows, unit) * unit, _ceil(columns, unit) * unit
            element = _FLOAT32_BYTES  # of a bias that is padded
        size = matrix.quantization.matrix_bytes(rows, columns, matrix.columns)
    return copies * (size + (rows * element if matrix.bias else 0))


def _vector_elements(layer: LayerFacts, hidden_size: int, ranks: int) -> int:
    count, experts = layer.norms * hidden_size + layer.output_factor, layer.mlp.experts
    if experts is not None and experts.router_scales:
        count += hidden_size + experts.count
    return count + _attention_vectors(layer.attention, ranks)


def _attention_vectors(attention: AttentionFacts, ranks: int) -> int:
    """Count the elements of an attention's norms and sinks on one rank."""
    match attention:
        case StateAttention():
            return state_vectors(attention.net, ranks)
        case GroupedAttention():
            heads = _ceil(attention.num_heads, ranks)
            count = heads if attention.softmax.sinks else 0
            if attention.softmax.index is not None:
                count += 2 * attention.softmax.index.dim
            if attention.qk_norm.of_heads:
                return count + 2 * attention.head_dim
            if attention.qk_norm is QkNorm.WHOLE:
                count += (heads + attention.heads.kv_per_rank(ranks)) * attention.head_dim
            return count
        case SharedKvAttention():
            return attention.head_dim if attention.qk_norm.of_heads else 0
        case EntriesAttention():
            sinks = _ceil(attention.num_heads, ranks)
            return sinks + compressed_vectors(attention.compressed, attention.head_dim)
        case LatentAttention():
            latent, index = attention.latent, attention.latent.own_index
            # The indexer's keys go through a LayerNorm, with a bias.
            indexed = 0 if index is None else 2 * index.dim
            return latent.kv_rank + (latent.query_rank or 0) + indexed
        case _:
            assert_never(attention)


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
