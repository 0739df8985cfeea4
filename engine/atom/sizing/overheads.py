"""Predicted memory beside weights and KV cache: activations, adapters' slots, the runtime itself.

These are upper estimates for the operator's plan, made before anything runs; the engine replaces
them by measurements. The module knows only shapes; no device is queried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, assert_never

from atom.sizing.attention.kinds import (
    AttentionFacts,
    EntriesAttention,
    GroupedAttention,
    LatentAttention,
    SharedKvAttention,
    StateAttention,
)
from atom.sizing.layers import LayerFacts, MlpFacts
from atom.sizing.limits import RunLimits
from atom.sizing.model_facts import ModelFacts
from atom.sizing.projection import Projection
from atom.sizing.weights import Sharding
from atom.sizing.weights.layer_matrices import WeightFacts, projections

_MIB = 1024**2
_GIB = 1024**3

# A Python process that imported torch and serves HTTP measures 550-650 MiB of resident memory on
# x86-64; the allocator's slack makes it 700.
CPU_RUNTIME_BYTES = 700 * _MIB
# Context, kernels and decode graphs, give or take 1 GiB: no AMD device was measured yet, and the
# engine replaces it by a measurement.
GPU_RUNTIME_BYTES = 3 * _GIB // 2
# The driver reports slightly less than the nominal size, and the allocator fragments.
GPU_SAFETY_FRACTION = 0.02

# Memory for communication between ranks, accurate within a factor of two. The library (RCCL, NCCL)
# keeps by default 4 MiB for each of up to 32 channels, in both directions. Kernels that add up few
# rows keep two buffers of 64 MiB (AITER's), or some rows of each rank twice, in words that are half
# data.
_LIBRARY_BYTES = 2 * 32 * 4 * _MIB
_ROOM_BYTES = 2 * 64 * _MIB
_PLACES, _BYTES_OF_A_WORDS_BYTE = 2, 2
# Every rank sends its rows to each of the others, so the bytes that leave a rank grow with the
# number of ranks, and the library's, which sends parts of sums, hardly grow. On four H100 the
# kernels took 18 us for 64 rows of 8 KiB (a whole decode step was 1.5 % faster with them than with
# the library), 34 us for 128 (library 20); on two, 15.5 us for 256 (library 30.5).
_MOST_ROWS_OF_A_SUM = 256
_MOST_SENT_BYTES = 3 * 2**19  # by one rank of more than two, to all others

_LOGITS_BYTES = 4  # logits are float32 for any dtype of the model
_LOGITS_COPIES = 3  # raw, scaled by temperature, and the sampler's probabilities
# An indexer scores as many tokens at once as this many float32 hold; its selections are int64.
MOST_SCORES = 2**25
_SCORE_BYTES, _PLACE_BYTES = 4, 8
# For queries against a window and entries, or selected spans: scores, scores with sinks, and their
# softmax.
MOST_ENTRY_SCORES = 2**22
_SCORE_COPIES = 3
# An encoder's prompts are pooled by as many elements of a float32 matrix at once, which is made of
# two comparisons and their conjunction.
MOST_POOLED = 2**20
_POOLED_BYTES = 4 + 3

_UNDIVIDED = Sharding()


def activation_bytes(
    facts: ModelFacts, limits: RunLimits, dtype_bytes: int, sharding: Sharding = _UNDIVIDED
) -> int:
    """Return the peak memory of one forward pass on one rank: the widest point of a layer, then the
    logits.

    The residual stream, its normed copy and the layer's output are live at the widest point, which
    is either attention (q, k, v, output) or the MLP (gate, up, their product). Every drafted token
    has a row of logits too, and goes through states once more if it was accepted. An indexer's
    scores and selection are live at the widest point, too. An encoder has no logits: its states
    are pooled after the layers.
    """
    tokens, drafts = limits.max_num_batched_tokens, limits.num_speculative_tokens
    again = limits.max_num_seqs * drafts
    widest = max(
        max(
            _attention_width(alike.layer.attention, sharding.tensor_parallel)
            * (tokens + again if isinstance(alike.layer.attention, StateAttention) else tokens),
            _mlp_width(facts, alike.layer.mlp, sharding) * tokens,
        )
        for alike in facts.layer_counts
    )
    layers = (3 * facts.hidden_size * tokens + widest) * dtype_bytes
    layers += _stream_bytes(facts, tokens, dtype_bytes)
    layers += _entry_score_bytes(facts, tokens, sharding.tensor_parallel)
    layers += _selection_bytes(facts, tokens) + _input_bytes(facts, tokens, dtype_bytes)
    if facts.is_encoder:
        return max(layers, _pooling_bytes(facts, limits, dtype_bytes))
    rows = limits.max_num_seqs * (1 + drafts)
    logits = rows * facts.vocab_size * _LOGITS_BYTES * _LOGITS_COPIES
    # An image is encoded before the layers run, whose memory is free then.
    vision = facts.vision
    encoding = 0 if vision is None else vision.activation_bytes(limits.max_model_len, dtype_bytes)
    return max(layers + logits, encoding)


def _pooling_bytes(facts: ModelFacts, limits: RunLimits, dtype_bytes: int) -> int:
    """Return the bytes at the mean of each prompt's states: the states, as float32 too, the matrix
    of the tokens of each prompt, and vectors in float32 as summed, divided and normalised."""
    tokens, rows = limits.max_num_batched_tokens, limits.max_num_seqs
    states = tokens * facts.hidden_size * (dtype_bytes + (4 if dtype_bytes < 4 else 0))
    matrix = min(rows * tokens, max(tokens, MOST_POOLED)) * _POOLED_BYTES
    return states + matrix + 3 * rows * facts.hidden_size * 4


def image_bytes(facts: ModelFacts, limits: RunLimits, dtype_bytes: int) -> int:
    """Return the bytes of images' outputs that every rank keeps for prompts; 0 for a model of
    text."""
    vision = facts.vision
    if vision is None:
        return 0
    return vision.output_bytes(limits.max_model_len, dtype_bytes)


def _selection_bytes(facts: ModelFacts, tokens: int) -> int:
    """Return the bytes of the scores of a piece of the step, and of each token's selected
    places."""
    kinds = (alike.layer.attention for alike in facts.layer_counts)
    indexers = (kind.latent.index for kind in kinds if isinstance(kind, LatentAttention))
    selected = max((index.top_k for index in indexers if index is not None), default=0)
    if facts.max_position_embeddings <= selected or not selected:
        return 0
    scores = min(MOST_SCORES, tokens * facts.max_position_embeddings)
    return scores * _SCORE_BYTES + tokens * selected * _PLACE_BYTES


def _entry_score_bytes(facts: ModelFacts, tokens: int, ranks: int) -> int:
    """Return the bytes of the scores of a piece of the step, of at least one token, against a
    window and entries, or against all tokens, of which spans are selected."""
    most = 0
    for alike in facts.layer_counts:
        attention = alike.layer.attention
        if isinstance(attention, GroupedAttention) and attention.softmax.index is not None:
            of_token = -(-attention.num_heads // ranks) * facts.max_position_embeddings
            most = max(most, min(tokens * of_token, max(of_token, MOST_ENTRY_SCORES)))
        if isinstance(attention, EntriesAttention):
            net = attention.compressed
            entries = facts.max_position_embeddings // net.rate if net.rate else 0
            heads = max(-(-attention.num_heads // ranks), net.index.heads if net.index else 0)
            of_token = heads * (attention.mask.size + entries)
            most = max(most, min(tokens * of_token, max(of_token, MOST_ENTRY_SCORES)))
    return _SCORE_COPIES * most * _SCORE_BYTES


def _stream_bytes(facts: ModelFacts, tokens: int, dtype_bytes: int) -> int:
    """Return the bytes of residual streams before and after a block, of their mixing, and of all
    streams of a token in float32, normed, as the mixing's input."""
    streams = max(alike.layer.streams for alike in facts.layer_counts)
    return streams * facts.hidden_size * tokens * (3 * dtype_bytes + 2 * _LOGITS_BYTES)


def _input_bytes(facts: ModelFacts, tokens: int, dtype_bytes: int) -> int:
    """Return the bytes of all layers' own inputs, which are computed at once (of embedding and
    projection, and their sum), and of keys and values that other layers attend to."""
    inputs = sum(alike.count * alike.layer.per_layer_input for alike in facts.layer_counts)
    sharing = {
        alike.layer.attention.target: alike.layer.attention
        for alike in facts.layer_counts
        if isinstance(alike.layer.attention, SharedKvAttention)
    }
    kept = sum(2 * each.num_kv_heads * each.head_dim for each in sharing.values())
    return (3 * inputs + kept) * tokens * dtype_bytes


def _attention_width(attention: AttentionFacts, ranks: int) -> int:
    heads = -(-attention.num_heads // ranks)
    match attention:
        case StateAttention():
            # Before and after the convolution and in float32, and a gate and an output of values.
            net = attention.net
            values = net.value_heads * net.value_dim
            return -(-(4 * net.conv_channels + 4 * values) // ranks)
        case EntriesAttention():
            # Queries as projected, normed, rotated, and their results; cached elements in parts.
            return 4 * heads * attention.head_dim + _kept_width(attention)
        case LatentAttention():
            # A prompt's keys and values are up-projected from the latent; queries may be
            # compressed too.
            latent = attention.latent
            up_projected = heads * 2 * (attention.head_dim + latent.value_dim)
            return up_projected + latent.cached_dim + (latent.query_rank or 0)
        case GroupedAttention() | SharedKvAttention():
            gates = heads if attention.matrices.output_gate else 0
            kv_heads = attention.heads.kv_per_rank(ranks)
            width = (2 * (heads + gates) + 2 * kv_heads) * attention.head_dim
            index = attention.softmax.index if isinstance(attention, GroupedAttention) else None
            return width if index is None else width + 2 * (index.heads + 1) * index.dim
        case _:
            assert_never(attention)


def _kept_width(attention: EntriesAttention) -> int:
    net, index = attention.compressed, attention.compressed.index
    asking = 0 if index is None else 2 * index.heads * index.dim
    return 3 * net.window_elements(attention.head_dim) + asking + 2 * net.query_rank


def _mlp_width(facts: ModelFacts, mlp: MlpFacts, sharding: Sharding) -> int:
    experts, ranks = mlp.experts, sharding.tensor_parallel
    beside = 3 * -(-mlp.intermediate_size // ranks)
    if experts is None:
        return beside
    inner = experts.intermediate_size
    if not sharding.expert_parallel:
        inner = -(-inner // ranks)
    # Every token goes through several experts, and each gives an output of the hidden size. Of
    # ranks with their own tokens, all may be sent to one.
    routed = sharding.sharing * experts.per_token * (3 * inner + facts.hidden_size)
    if mlp.is_beside:
        beside += 2 * facts.hidden_size  # the MLP's output, and the experts' input
    return routed + beside + 3 * -(-experts.shared_intermediate_size // ranks)


def runtime_overhead_bytes(device: Literal["cpu", "gpu"], total_bytes: int) -> int:
    """Return the bytes that the process occupies before it allocates a tensor, with a safety
    margin."""
    if device == "cpu":
        return CPU_RUNTIME_BYTES
    return GPU_RUNTIME_BYTES + int(total_bytes * GPU_SAFETY_FRACTION)


def communication_bytes(row_bytes: int, sharding: Sharding, nodes: int = 1) -> int:
    """Return the GPU memory for communication with the model's other ranks; 0 without other ranks.
    row_bytes: of a token's hidden state. Over several nodes the library alone computes sums."""
    ranks = sharding.tensor_parallel
    if ranks * sharding.sharing == 1:
        return 0
    if ranks == 1 or nodes > 1:
        return _LIBRARY_BYTES
    words = ranks * rows_of_a_sum(row_bytes, ranks) * _PLACES * _BYTES_OF_A_WORDS_BYTE * row_bytes
    return _LIBRARY_BYTES + max(_ROOM_BYTES, words)


def rows_of_a_sum(row_bytes: int, ranks: int) -> int:
    """Return the most rows that `ranks` ranks add up in the norm's kernel; more are the library's.
    row_bytes: of a token's hidden state."""
    if ranks <= 2:
        return _MOST_ROWS_OF_A_SUM
    return max(1, min(_MOST_ROWS_OF_A_SUM, _MOST_SENT_BYTES // (row_bytes * (ranks - 1))))


@dataclass(frozen=True, slots=True)
class LoraRoom:
    """The number of adapters, their highest rank, and whether they may have experts' matrices."""

    slots: int
    rank: int
    experts: bool = False


def lora_bytes(facts: WeightFacts, room: LoraRoom, element_bytes: int, sharding: Sharding) -> int:
    """Return the bytes of all adapters' slots on one rank, in the model's dtype. A slot has `rank`
    rows of the inputs and `rank` columns of the outputs of every matrix that adapters change. An
    adapter in the host's memory takes as much as one slot."""
    vectors = sum(
        alike.count * _lora_elements(matrix, sharding)
        for alike in facts.layer_counts
        for matrix in lora_projections(facts, alike.layer, experts=room.experts)
    )
    return room.slots * room.rank * vectors * element_bytes


def lora_projections(
    facts: WeightFacts, layer: LayerFacts, *, experts: bool = False
) -> Iterator[Projection]:
    """Yield the matrices of a layer that adapters may add to: of experts where asked for, no
    router, and not what latent attention multiplies with in halves."""
    block = facts.experts_block
    router = f"{block.name}.{block.router}"
    for matrix in projections(layer, facts.hidden_size, block):
        if (matrix.copies == 1 or experts) and not matrix.absorbed and matrix.name != router:
            yield matrix


def _lora_elements(matrix: Projection, sharding: Sharding) -> int:
    """Count the elements of an input and of an output; queries, keys and values that a delta net
    has in one matrix are parts with an input each."""
    ranks, copies = sharding.tensor_parallel, matrix.copies
    if copies > 1 and sharding.expert_parallel:
        ranks, copies = 1, -(-(copies + sharding.redundant) // sharding.expert_ranks)
    rows, columns = matrix.on_rank(ranks)
    parts = 3 if matrix.name.endswith(".in_proj_qkv") else 1
    return copies * (rows + parts * columns)
