"""The matrices of a model's layers, undivided: names, sizes, splits over ranks, formats. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol, assert_never

from atom.sizing.attention.compressed_weights import compressed_projections
from atom.sizing.attention.kinds import (
    AttentionFacts,
    EntriesAttention,
    GroupedAttention,
    LatentAttention,
    SharedKvAttention,
    StateAttention,
)
from atom.sizing.layers import (
    PLAIN_BLOCK,
    ExpertsBlock,
    ExtraInputs,
    LayerCount,
    LayerFacts,
    MlpFacts,
)
from atom.sizing.projection import Projection, Split, fused_projections
from atom.sizing.states.weights import state_projections
from atom.sizing.vision.facts import VisionFacts

PER_LAYER_INPUT = "per_layer_"  # the prefix of the matrices of a layer's own inputs
# The prefixes of the matrices of a layer's attention, below the layer.
ATTENTION_MODULES = ("self_attn.", "linear_attn.")


class WeightFacts(Protocol):
    """The fields of ModelFacts that decide the bytes of its weights."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def tie_word_embeddings(self) -> bool: ...

    @property
    def weight_dtype_bytes(self) -> int: ...

    @property
    def layer_counts(self) -> tuple[LayerCount, ...]: ...

    @property
    def mtp_counts(self) -> tuple[LayerCount, ...]: ...

    @property
    def experts_block(self) -> ExpertsBlock: ...

    @property
    def inputs(self) -> ExtraInputs: ...

    @property
    def vision(self) -> VisionFacts | None: ...


def projections(
    layer: LayerFacts, hidden_size: int, experts_block: ExpertsBlock
) -> Iterator[Projection]:
    """Yield every matrix of a layer, undivided."""
    yield from _attention(layer.attention, hidden_size)
    yield from _mlp(layer.mlp, hidden_size, experts_block)
    if layer.per_layer_input:
        size = layer.per_layer_input
        for name, rows, columns in (
            ("input_gate", size, hidden_size), ("projection", hidden_size, size)
        ):  # fmt: skip
            named = f"{PER_LAYER_INPUT}{name}"
            yield Projection(name=named, rows=rows, columns=columns, split=Split.NOTHING)


def stored_projections(facts: WeightFacts, layer: LayerFacts) -> Iterator[Projection]:
    """Yield every matrix of a layer with the format that the model has it in."""
    for matrix in projections(layer, facts.hidden_size, facts.experts_block):
        stored = layer.format_of(matrix.name) if matrix.quantizable else None
        yield matrix if stored is None else replace(matrix, quantization=stored)


def token_elements(facts: WeightFacts) -> int:
    """Count the elements of all layers' matrices that a token goes through; of experts those it is
    routed to."""
    return sum(
        alike.count * _used_copies(matrix.copies, alike.layer) * matrix.rows * matrix.columns
        for alike in facts.layer_counts
        for matrix in projections(alike.layer, facts.hidden_size, facts.experts_block)
    )


def _used_copies(copies: int, layer: LayerFacts) -> int:
    if copies == 1:
        return 1
    experts = layer.mlp.experts
    assert experts is not None, "copies are experts"
    return experts.per_token


def _attention(attention: AttentionFacts, hidden: int) -> Iterator[Projection]:
    match attention:
        case StateAttention():
            yield from state_projections(attention.net, hidden)
        case LatentAttention():
            yield from _latent_attention(attention, hidden)
        case EntriesAttention():
            heads, size = attention.num_heads, attention.head_dim
            yield from compressed_projections(attention.compressed, heads, size, hidden)
        case GroupedAttention() | SharedKvAttention():
            yield from _grouped_attention(attention, hidden)
        case _:
            assert_never(attention)


def _grouped_attention(
    attention: GroupedAttention | SharedKvAttention, hidden: int
) -> Iterator[Projection]:
    size, parts = attention.head_dim, attention.matrices
    heads = [("q_proj", attention.num_heads, 2 * size if parts.output_gate else size)]
    value_dim = size
    if isinstance(attention, GroupedAttention):
        value_dim = attention.value_dim
        heads.append(("k_proj", attention.num_kv_heads, size))
        if not attention.values.are_keys:
            heads.append(("v_proj", attention.num_kv_heads, value_dim))
    matrices = [
        Projection(
            name=f"self_attn.{name}",
            rows=count * unit,
            columns=2 * hidden if parts.reads_embedding else hidden,
            split=Split.OUTPUTS,
            unit=unit,
            bias=parts.qkv_bias,
        )
        for name, count, unit in heads
    ]
    yield from fused_projections("self_attn.qkv_proj", matrices) if parts.fused else matrices
    yield _output(attention.num_heads, value_dim, hidden, bias=parts.output_bias)
    index = attention.softmax.index if isinstance(attention, GroupedAttention) else None
    if index is not None:
        rows, name = index.heads * index.dim, "self_attn.index_q_proj"
        yield Projection(name=name, rows=rows, columns=hidden, split=Split.OUTPUTS, unit=index.dim)
        name = "self_attn.index_k_proj"
        yield Projection(name=name, rows=index.dim, columns=hidden, split=Split.NOTHING)


def _output(heads: int, head_size: int, hidden: int, *, bias: bool) -> Projection:
    return Projection(
        name="self_attn.o_proj",
        rows=hidden,
        columns=heads * head_size,
        split=Split.INPUTS,
        unit=head_size,
        bias=bias,
    )


def _latent_attention(attention: LatentAttention, hidden: int) -> Iterator[Projection]:
    latent, heads = attention.latent, attention.num_heads
    rank, query = latent.query_rank, latent.nope_dim + latent.rope_dim

    def whole(name: str, rows: int, columns: int, *, bias: bool = False) -> Projection:
        return Projection(
            name=f"self_attn.{name}", rows=rows, columns=columns, split=Split.NOTHING, bias=bias
        )

    def by_heads(name: str, unit: int, columns: int) -> Projection:
        return Projection(
            name=f"self_attn.{name}",
            rows=heads * unit,
            columns=columns,
            split=Split.OUTPUTS,
            unit=unit,
        )

    if rank is None:
        yield by_heads("q_proj", query, hidden)
    else:
        yield whole("q_a_proj", rank, hidden, bias=attention.down_bias)
        yield by_heads("q_b_proj", query, rank)
    yield whole("kv_a_proj_with_mqa", latent.cached_dim, hidden, bias=attention.down_bias)
    unfolding = by_heads("kv_b_proj", latent.nope_dim + latent.value_dim, latent.kv_rank)
    yield replace(unfolding, absorbed=True)
    yield _output(heads, latent.value_dim, hidden, bias=attention.output_bias)
    index = latent.own_index
    if index is not None:
        yield whole("indexer.wq_b", index.heads * index.dim, rank or hidden)
        yield whole("indexer.wk", index.dim, hidden)
        weights = whole("indexer.weights_proj", index.heads, hidden)
        yield replace(weights, quantizable=False)


def _mlp(mlp: MlpFacts, hidden: int, block: ExpertsBlock) -> Iterator[Projection]:
    experts = mlp.experts
    if mlp.intermediate_size:
        plain = PLAIN_BLOCK.matrices
        yield from _of_all_tokens(block.dense, plain, mlp, mlp.intermediate_size, hidden)
    if experts is None:
        return
    yield Projection(
        name=f"{block.name}.{block.router}",
        rows=experts.count,
        columns=hidden,
        split=Split.NOTHING,
        bias=experts.router_bias,
        quantizable=False,
    )
    matrices: tuple[str, ...] = block.matrices if mlp.gated else block.matrices[1:]
    width, bias = experts.intermediate_size, experts.bias
    for matrix in _gated(f"{block.name}.experts.0", matrices, width, hidden, bias):
        yield replace(matrix, copies=experts.count)
    if not experts.shared_intermediate_size:
        return
    name, width = f"{block.name}.{block.shared}", experts.shared_intermediate_size
    yield from _of_all_tokens(name, block.shared_matrices or block.matrices, mlp, width, hidden)
    if experts.shared_gate:
        yield Projection(
            name=f"{name}_gate", rows=1, columns=hidden, split=Split.NOTHING, quantizable=False
        )


def _of_all_tokens(
    name: str, matrices: tuple[str, ...], mlp: MlpFacts, width: int, hidden: int
) -> Iterator[Projection]:
    """Yield the matrices of an MLP that every token goes through."""
    names, bias = matrices if mlp.gated else matrices[1:], mlp.bias
    *inner, outer = _gated(name, names, width, hidden, bias)
    yield from fused_projections(f"{name}.gate_up_proj", inner) if mlp.fused else inner
    yield outer


def _gated(
    name: str, matrices: tuple[str, ...], width: int, hidden: int, bias: bool
) -> Iterator[Projection]:
    *inner, outer = matrices
    for matrix in inner:
        yield Projection(
            name=f"{name}.{matrix}", rows=width, columns=hidden, split=Split.OUTPUTS, bias=bias
        )
    yield Projection(
        name=f"{name}.{outer}", rows=hidden, columns=width, split=Split.INPUTS, bias=bias
    )
