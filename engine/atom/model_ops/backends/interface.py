"""The contract of every operation that a backend may provide.

Shapes: T tokens of a step, R its rows, H hidden size, V vocabulary; Hq, Hkv heads, D head size; N
blocks of S tokens. Activations have the model's dtype and are contiguous unless stated otherwise.
No operation keeps references to its arguments, and only a stream's tensors may be overwritten
unless stated otherwise. An implementation may be captured into a graph if its backend declares it
capturable; it must not then read device values on the host.

op_names.py lists the operations; `torch_ref` provides all of them and is the oracle of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from atom.model_ops.activations import Gating
from atom.model_ops.backends.draft_ops import DraftOps
from atom.model_ops.backends.lora_ops import LoraOps
from atom.model_ops.backends.pinned_ring import PinnedRing
from atom.model_ops.compressed_attention import (
    CompressedCache,
    CompressedLayer,
    CompressedTokens,
)
from atom.model_ops.index_values import (
    IndexCache,
    IndexShape,
    IndexTokens,
    SpanIndexShape,
    SpanTokens,
)
from atom.model_ops.linear_attention import (
    ConvWeight,
    DeltaNetWeight,
    DeltaSlots,
    DeltaTokens,
    DeltaWeight,
    SsdTokens,
    SsdWeight,
)
from atom.model_ops.routing import Routed, Routing
from atom.model_ops.slots import DecodeInputs, SlotTensors
from atom.model_ops.values import (
    AttentionShape,
    ExpertsWeight,
    LatentCache,
    LatentShape,
    LatentTokens,
    LayerCache,
    LinearWeight,
    MoEWeight,
    NormWeight,
    Rotary,
    RouterWeight,
    Stream,
)
from atom.sizing.states import DeltaShape, SsdShape
from atom.utils.forward_context import AttentionMetaData


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Parameters of the draws of the rows to sample, one entry per row, on the device.

    temperature: float32, 0 for greedy; seed: int64; position: int64, index of the token being
    drawn in its sequence. The host knows whether all rows are greedy, or any.
    """

    temperature: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor
    all_greedy: bool = False
    any_greedy: bool = True

    def first(self, rows: int) -> SamplingTensors:
        """Return the tensors of the first rows, as views of the same memory."""
        return replace(
            self,
            temperature=self.temperature[:rows],
            seed=self.seed[:rows],
            position=self.position[:rows],
        )


@dataclass(frozen=True, slots=True)
class LogitFilters:
    """Top-k, top-p and min-p of rows, one entry per row, on the device.

    temperature: float32, as in SamplingTensors; top_k: int64, V for off; top_p: float32, 1 for off;
    min_p: float32, 0 for off. The host knows whether any row has a top_p or min_p, and candidates:
    how many of a row's likeliest tokens decide its top_k and top_p. 0 when no row has either; the
    largest top_k when every row has one or has neither; V when a top_p is on its own.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    candidates: int
    any_top_p: bool
    any_min_p: bool


class Ops(DraftOps, LoraOps, Protocol):
    """The operations of a model, each bound to the backend chosen for it."""

    def embedding(self, ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Look up ids [T] int in weight [V, H] → [T, H]."""

    def prepare_linear(self, w: LinearWeight) -> LinearWeight:
        """Arrange a matrix, once, after loading: the same values, in the order of memory or the
        format that suits the backend. The layer keeps the result instead."""

    def prepare_experts(self, w: LinearWeight) -> LinearWeight:
        """Prepare a stack of experts' matrices for `experts`, as `prepare_linear` does a matrix."""

    def linear(self, x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
        """Multiply x [T, in] → [T, out]. With a matrix of FP8, FP8_BLOCKS or INT8, and of MXFP4
        that has fp4_inputs, a backend may round x to the same element first, by token or finer."""

    def rms_norm(self, x: torch.Tensor, norm: NormWeight) -> torch.Tensor:
        """Normalise over the last dimension, statistics in float32; returns a new tensor."""

    def norm(self, stream: Stream, norm: NormWeight) -> tuple[torch.Tensor, Stream]:
        """Settle the stream, whatever is pending, and norm it: (rms_norm(residual'), the stream
        with residual' alone). May overwrite the stream's tensors: it must not be used again."""

    def act_and_mul(self, x: torch.Tensor, activation: Gating) -> torch.Tensor:
        """Compute x [T, 2·I] → activation(x[:, :I]) * x[:, I:], [T, I]; ClampedSwiGLU as its
        docstring defines."""

    def rotate_heads(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotate the heads x [T, heads, D] in place, in float32: each element i with i + D / 2. A
        token's heads are contiguous; cos, sin [T, D / 2] float32, contiguous."""

    def route(self, x: torch.Tensor, w: RouterWeight, routing: Routing) -> Routed:
        """Choose and weigh the experts of each token of x [T, H], scores in float32. Of equal
        scores any is chosen."""

    def experts(self, x: torch.Tensor, w: ExpertsWeight, routed: Routed) -> torch.Tensor:
        """Compute the weighted sum of the results of each token's experts, in float32 until it is
        complete: x [T, H] → [T, H]. Experts that `routed` leaves to other ranks add nothing. May
        round the inputs as `linear` does, and to e4m3 for MXFP4 with a clamped activation, whose
        numbers are bounded."""

    def qk_norm_rope_store(
        self,
        qkv: torch.Tensor,
        shape: AttentionShape,
        rotary: Rotary,
        cache: LayerCache,
        slot_mapping: torch.Tensor,
    ) -> torch.Tensor:
        """Split qkv [T, (Hq + 2·Hkv)·D], norm q and k per head (if there are norms), rotate them,
        write k and v to their cache slots [T] int64, block · S + offset; return q [T, Hq, D]. May
        overwrite qkv. In a captured step, slots below 0 are padding: nothing is written for
        them."""

    def paged_attention(
        self,
        q: torch.Tensor,
        shape: AttentionShape,
        cache: LayerCache,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        """Attend causally with q [T, Hq, D] to each row's cached tokens, as many of the newest as
        the shape's window reaches → [T, Hq·D]. Blocks that no query of the row reaches are not
        read. In a captured step, a decode row of context 0 (padding) yields zeros, and so do tokens
        of no row if the step has padding."""

    def mla_rope_store(
        self,
        tokens: LatentTokens,
        shape: LatentShape,
        rotary: Rotary,
        cache: LatentCache,
        slot_mapping: torch.Tensor,
    ) -> LatentTokens:
        """Norm the tokens' latents, rotate their keys and the last rope_dim elements of each query,
        and write the entries to their cache slots [T] int64, block · S + offset; return all tokens,
        entries of an fp8 cache as the cache holds them, so that a prompt attends to the same
        numbers with or without a look-up. May overwrite the tokens. In a captured step, slots below
        0 are padding."""

    def mla_attention(
        self,
        tokens: LatentTokens,
        shape: LatentShape,
        up: LinearWeight,
        cache: LatentCache,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        """Attend causally with the queries of `mla_rope_store` to each row's cached tokens → [T,
        Hq·value_dim]. up [Hq · (nope_dim + value_dim), kv_rank] makes each head's key and then
        value from a latent; an equivalent way applies it to queries and results. Padding is as in
        `paged_attention`."""

    def compressed_attention(
        self,
        tokens: CompressedTokens,
        layer: CompressedLayer,
        rotary: Rotary,
        cache: CompressedCache,
        steps: tuple[AttentionMetaData, AttentionMetaData],
    ) -> torch.Tensor:
        """Rotate the tokens' queries and keys, write the cached elements to their slots, sum up the
        entries that the tokens complete, and attend: each query to its row's window and to the
        entries that are complete up to itself; with an indexer, to the top_k of these with the
        highest Σ_h weights[t, h] · relu(asking[t, h] · key[s]), of equal ones the first. The heads'
        results are rotated back by their own position → [T, Hq·D]. steps: the metadata of the
        window, and of the blocks of entries, which hold the entries that their tokens complete,
        entry w at position rate · w."""

    def select_tokens(
        self,
        tokens: IndexTokens,
        shape: IndexShape,
        rotary: Rotary,
        cache: IndexCache,
        step: AttentionMetaData,
    ) -> torch.Tensor | None:
        """Rotate the tokens' queries and keys, write keys to the step's cache slots, and score, for
        each token t, its row's tokens s up to itself: scale · Σ_h weights[t, h] · relu(q[t, h] ·
        key[s]), both zeros being equal. Return the cache slots [T, top_k] int64 of the highest
        scores, of equal ones those of the lowest positions, block · S + offset, in any order,
        padded with -1; None if no row has more than top_k tokens, and so all are selected. May
        overwrite the tokens. In a captured step, slots below 0 are padding."""

    def sparse_mla_attention(
        self,
        tokens: LatentTokens,
        shape: LatentShape,
        up: LinearWeight,
        cache: LatentCache,
        selected: torch.Tensor,
    ) -> torch.Tensor:
        """Compute `mla_attention` of each token to its selected cache slots alone; in a captured
        step, a token without slots yields zeros."""

    def select_spans(
        self,
        tokens: SpanTokens,
        shape: SpanIndexShape,
        rotary: Rotary,
        cache: IndexCache,
        step: AttentionMetaData,
    ) -> torch.Tensor | None:
        """Rotate the first rope_dim elements of the tokens' queries and keys, write keys to the
        step's cache slots, and score each token t's spans, from the sequence's first token on, by
        the highest q[t, h] · key[s] of the tokens s up to t in it. Return the numbers [T, heads,
        top_k] int64 of the highest spans, of equal ones any, the newest ones first of all, padded
        with -1; None if no row has more than top_k spans, and so all are selected."""

    def span_attention(
        self,
        q: torch.Tensor,
        shape: AttentionShape,
        cache: LayerCache,
        selected: tuple[torch.Tensor, SpanIndexShape],
        step: AttentionMetaData,
    ) -> torch.Tensor:
        """Compute `paged_attention` of each token to the tokens of its selected spans alone; each
        KV head of a token has its own."""

    def short_convolution(
        self,
        x: torch.Tensor,
        weight: ConvWeight,
        tails: torch.Tensor,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        """Convolve each channel of x [T, C], which may be part of a wider tensor, with its taps [C,
        W] over a token and the W - 1 tokens before it in its row, then add the bias and apply silu,
        if there are any → [T, C]. The tokens before a row's first token here are in its slot's
        tail, tails [slots, C, W - 1] float32, the newest last; they are zeros for a row that
        begins. The tails then hold the row's newest tokens of those that num_kept counts. The last
        slot, and slots below 0, are padding."""

    def gated_delta_rule(
        self,
        tokens: DeltaTokens,
        shape: DeltaShape,
        weight: DeltaWeight,
        states: torch.Tensor,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        """Update each value head's matrix S with each row's tokens. S is in the row's slot, states
        [slots, Hv, Dk, Dv] float32, zeros for a row that begins. S decays, S ← S · exp(g), learns
        the error of its value for the key, S ← S + k ⊗ β (v - kᵀ S), and answers the query, qᵀ S →
        [T, Hv, Dv]. q and k have unit length, q over √Dk; β = sigmoid(b), g = -exp(a_log) ·
        softplus(a + dt_bias), of a head or, with channel_gates, of each row of S; all in float32.
        The states are stored after the last token that num_kept counts. Slots are as in
        `short_convolution`."""

    def state_space_dual(
        self,
        tokens: SsdTokens,
        shape: SsdShape,
        weight: SsdWeight,
        states: torch.Tensor,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        """Update each value head's matrix S with each row's tokens. S is in the row's slot, states
        [slots, Hv, Dk, Dv] float32, zeros for a row that begins. S decays and learns, S ← S ·
        exp(-exp(a_log) · d) + k ⊗ d · v, and answers the query, qᵀ S + skip · v → [T, Hv, Dv]; d =
        softplus(steps + dt_bias), all in float32. The states are stored after the last token that
        num_kept counts. Slots are as in `short_convolution`."""

    def linear_parts(self, x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
        """Compute `linear`, whose result may be left as its parts: [T, out], or [parts, T, out]
        float32 whose sum it is."""

    def gated_linear(self, x: torch.Tensor, w: LinearWeight, activation: Gating) -> torch.Tensor:
        """Compute `linear`, then `act_and_mul`: x [T, in], w [2·I, in] → [T, I]."""

    def add(self, stream: Stream, x: torch.Tensor, w: LinearWeight) -> Stream:
        """Add `linear(x, w)` to a settled stream: now, or as the pending addend of the same
        backend's next norm, whole or in parts. May overwrite the stream's tensors."""

    def norm_linear(
        self, stream: Stream, norm: NormWeight, w: LinearWeight
    ) -> tuple[torch.Tensor, Stream]:
        """Compute `norm`, then `linear`: (product [T, out], the settled stream)."""

    def add_experts(
        self,
        stream: Stream,
        x: torch.Tensor,
        w: ExpertsWeight,
        routed: Routed,
        shared: torch.Tensor | None,
    ) -> Stream:
        """Add `experts(x, w, routed)`, and shared [T, H] if there is any, to a settled stream, as
        `add` does. May overwrite the stream's tensors and shared."""

    def norm_experts(self, stream: Stream, norm: NormWeight, w: MoEWeight) -> Stream:
        """Compute `norm`, `route`, the shared expert's `gated_linear` and `linear`, and
        `add_experts`: a layer's second half, for few tokens, whose launches count."""

    def norm_gated_linear(
        self, stream: Stream, norm: NormWeight, w: LinearWeight, activation: Gating
    ) -> tuple[torch.Tensor, Stream]:
        """Compute `norm_linear`, then `act_and_mul`: w [2·I, in] → ([T, I], the settled stream)."""

    def attention(
        self,
        qkv: torch.Tensor,
        shape: AttentionShape,
        rotary: Rotary,
        cache: LayerCache,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        """Compute `qk_norm_rope_store`, then `paged_attention` → [T, Hq·D]. May overwrite qkv."""

    def gated_delta_net(
        self,
        tokens: DeltaTokens,
        z: torch.Tensor,
        weight: DeltaNetWeight,
        kept: DeltaSlots,
        step: AttentionMetaData,
    ) -> torch.Tensor:
        """Compute `short_convolution` of the tokens' qkv, `gated_delta_rule`, the norm of each
        head's answers, and their product with silu(z), z [T, Hv·Dv] → [T, Hv·Dv]."""

    def sample(self, logits: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        """Draw token ids [R] int64 from logits [R, V], any float dtype, compared and scaled in
        float32. temperature 0 takes the first maximum; otherwise one draw from softmax(logits /
        temperature). The draw depends on (seed, position) and the row's logits alone, never on the
        rest of the batch. A token of logit -inf is never chosen while there is another. May
        overwrite logits."""

    def sample_vocab_shard(
        self, logits: torch.Tensor, first: int, sampling: SamplingTensors
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw as `sample` does from a vocabulary shard: logits [R, n] of the tokens from `first`
        on → the winner among them [R] int64, a token id, and its score [R] float32. Of several
        shards the winner with the highest score, the first of equal ones, is what `sample` draws of
        all logits. n and first are multiples of noise.GROUP unless all rows are greedy. May
        overwrite logits."""

    def filter_logits(self, logits: torch.Tensor, filters: LogitFilters) -> torch.Tensor:
        """Mask logits [R, V], any float dtype, compared and weighed in float32: tokens that no draw
        may give become -inf, those less likely than the k-th, then those less likely than the last
        of the smallest set whose probability reaches top-p, then those less likely than min-p times
        the most likely one. Tokens as likely as the last one kept are kept. May overwrite logits. A
        capturable backend decides by the tensors alone: the host's values (candidates, any_top_p,
        any_min_p) may then be upper bounds."""

    def apply_token_mask(
        self, logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor
    ) -> None:
        """Set logits [R, V] of forbidden tokens to -inf, in place. rows [G] int64, each once; bits
        [G, ceil(V / 32)] int32: of row rows[g] token t is allowed where bit t % 32 of word t // 32
        is set. Other rows are not touched."""

    def receive_step(
        self,
        ring: PinnedRing,
        slots: torch.Tensor,
        state: SlotTensors,
        wanted: torch.Tensor | None = None,
    ) -> None:
        """Receive the next entry: copy its slots to slots [S] int64 and its appended blocks into
        the state's tables, and advance the turn. Negative slots and the padding slot are padding.
        With `wanted` [S] int64, also copy the number of drafts of each row."""

    def prepare_decode(
        self, slots: torch.Tensor, state: SlotTensors, block_size: int
    ) -> DecodeInputs:
        """Gather the inputs of one decode step. slots [R] int64, of its rows; negative ones and the
        padding slot are padding."""

    def commit_tokens(
        self,
        slots: torch.Tensor,
        token_ids: torch.Tensor,
        state: SlotTensors,
        ring: PinnedRing | None = None,
    ) -> None:
        """Commit a decode step's draws: token_ids [R] become their slots' last_token, num_computed
        grows by one, and with `ring` they are the answer to the entry received last. Where slots
        keep their tokens, these are kept there. Padding rows change no real slot."""
