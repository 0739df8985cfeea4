"""Values that layers and operations exchange, so that the value, and not a signature, states a
format, a cache or a sum that is still in parts.

Shapes: T tokens of a step, H hidden size; Hq, Hkv heads, D head size; N blocks of S tokens. Data
only: operations (backends/interface.py) compute with them, layers make them. Only weights and
caches are kept beyond a step.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import cast

import torch

from atom.model_ops.activations import Gating
from atom.model_ops.routing import Routing
from atom.sizing.mask_rule import CAUSAL, MaskRule
from atom.utils.forward_context import AttentionMetaData


class WeightFormat(enum.Enum):
    """The storage format of a matrix [out, in], and the form of its scales."""

    PLAIN = "plain"  # the model's dtype, no scales
    FP8 = "fp8"  # e4m3; float32 [out, 1]
    FP8_BLOCKS = "fp8 blocks"  # e4m3; float32 [out / rows, in / columns] of a block
    INT8 = "int8"  # int8; float32 [out, 1]
    INT4 = "int4 groups"  # uint8 [out, in / 2], less a zero point; float16 [out, groups]
    INT4_ORDERED = "int4 ordered groups"  # the same, with each input's group
    MXFP4 = "mxfp4"  # e2m1 in uint8 [out, in / 2]; uint8 [out, in / 32], exponents of 2 from -127
    MXFP4_INTERLEAVED = (
        "mxfp4 interleaved"  # the same, of experts, rows by eight (quantised/mxfp4_interleaved.py)
    )

    @property
    def elements_per_byte(self) -> int:
        """Return 2 if neighbouring inputs share a byte, the first in its low half; else 1, for
        elements of a byte or of the model's dtype."""
        return 2 if self in (*INT4_FORMATS, *FP4_FORMATS) else 1


INT4_FORMATS = (WeightFormat.INT4, WeightFormat.INT4_ORDERED)
FP4_FORMATS = (WeightFormat.MXFP4, WeightFormat.MXFP4_INTERLEAVED)
# Whose matrices are multiplied with activations of the same element.
EIGHT_BITS = (WeightFormat.FP8, WeightFormat.FP8_BLOCKS, WeightFormat.INT8)


@dataclass(frozen=True, slots=True)
class InputGroups:
    """The groups of inputs that share a scale, of INT4_ORDERED: index int32 [.., parts, in], each
    input's group in each part of the outputs; rows: of the parts, one after the other. order int32
    [.., parts, in], if inputs are sorted by group: the input stored in each place, whose group
    index gives; whole: every group then has as many inputs as share a scale."""

    index: torch.Tensor
    rows: tuple[int, ...]
    order: torch.Tensor | None = None
    whole: bool = False

    def of(self, expert: int) -> InputGroups:
        """Take the groups of one matrix of a stack."""
        order = None if self.order is None else self.order[expert]
        return replace(self, index=self.index[expert], order=order)

    def spread(self, by_group: torch.Tensor) -> torch.Tensor:
        """Expand values by group [.., out, groups] to values by input [.., out, in]."""
        return by_group.gather(-1, self._of_rows(self.index))

    def in_place(self, values: torch.Tensor) -> torch.Tensor:
        """Put values [.., out, in] as they are stored into the order of the inputs."""
        if self.order is None:
            return values
        return torch.empty_like(values).scatter_(-1, self._of_rows(self.order), values)

    def _of_rows(self, of_parts: torch.Tensor) -> torch.Tensor:
        rows = torch.tensor(self.rows, device=of_parts.device)
        return of_parts.repeat_interleave(rows, -2).long()


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of a quantised matrix: its numbers are element × scale of the element's block.

    Shapes are the format's, with the same leading dimensions as the matrix if there are several of
    it. block: outputs and inputs that share a scale; zero: of INT4, uint8 [out / 2, groups], two
    outputs a byte, None if every zero point is 8; dtype: of the activations; groups: the inputs
    that share a scale if they are not contiguous; fp4_inputs: of MXFP4, whether the checkpoint is
    made for inputs of MXFP4 as well, so that a backend may round to it.
    """

    format: WeightFormat
    scale: torch.Tensor
    block: tuple[int, int]
    dtype: torch.dtype
    zero: torch.Tensor | None = None
    groups: InputGroups | None = None
    fp4_inputs: bool = False

    def of(self, expert: int) -> Scales:
        """Take the scales of one matrix of a stack."""
        zero = None if self.zero is None else self.zero[expert]
        groups = self.groups and self.groups.of(expert)
        return replace(self, scale=self.scale[expert], zero=zero, groups=groups)


@dataclass(frozen=True, slots=True)
class LoraWeight:
    """The low-rank parts of a matrix, of as many adapters as have a slot: a [slots, parts · R, in],
    b [slots, out, R], in the model's dtype. rows: of each part (a projection) of the matrix, one
    below the other, whose shrink is its own R rows of a. An adapter of a lower rank than R has
    zeros, as has one that leaves the matrix alone; its scaling is in b. Of a stack of E matrices a
    [slots, E, parts · R, in], b [slots, E, out, R]."""

    a: torch.Tensor
    b: torch.Tensor
    rows: tuple[int, ...]

    @property
    def rank(self) -> int:
        return self.b.shape[-1]

    def of_stack(self) -> LoraWeight:
        """Return the adapters with separate slots for each matrix of a stack: slot · E + matrix."""
        return replace(self, a=self.a.flatten(0, 1), b=self.b.flatten(0, 1))


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A matrix and the values for multiplying by it: data [out, in] (two elements a byte in some
    formats), bias [out], scales unless it is plain. A stack of experts has data [E, out, in], bias
    [E, out]; gating: combines the rows of gate and up, None in other stacks. lora: the adapters of
    its product, None if no adapter is served. ranks: over which a matrix is divided by its inputs,
    if several ranks would divide it so; else None."""

    data: torch.Tensor
    bias: torch.Tensor | None = None
    scales: Scales | None = None
    gating: Gating | None = None
    lora: LoraWeight | None = None
    ranks: int | None = None

    @property
    def format(self) -> WeightFormat:
        return WeightFormat.PLAIN if self.scales is None else self.scales.format

    @property
    def outputs(self) -> int:
        return self.data.shape[-2]

    @property
    def inputs(self) -> int:
        return self.data.shape[-1] * self.format.elements_per_byte

    def of(self, expert: int) -> LinearWeight:
        """Return the weight of one matrix of a stack."""
        bias = None if self.bias is None else self.bias[expert]
        scales = None if self.scales is None else self.scales.of(expert)
        return LinearWeight(self.data[expert], bias, scales)


@dataclass(frozen=True, slots=True)
class RouterWeight:
    """The weights that score a layer's E experts for a token: matrix [E, H];
    e_score_correction_bias [E] float32 is added to scores for choosing experts, and not for
    weighing them."""

    matrix: LinearWeight
    e_score_correction_bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ExpertsWeight:
    """A layer's E gated MLPs: gate_up a stack of [2·I, H], gate's rows first, down of [H, I].
    weighs_inputs: see Routing."""

    gate_up: LinearWeight
    down: LinearWeight
    activation: Gating
    weighs_inputs: bool = False

    @property
    def count(self) -> int:
        return self.down.data.shape[0]


@dataclass(frozen=True, slots=True)
class SharedWeight:
    """The gated MLP of a layer with experts that every token goes through: gate_up [2·I, H], down
    [H, I]; gate [1, H]: how much of it a token gets, a sigmoid, None for all of it."""

    gate_up: LinearWeight
    down: LinearWeight
    activation: Gating
    gate: LinearWeight | None = None


@dataclass(frozen=True, slots=True)
class MoEWeight:
    """The weights of a layer with experts, after its norm."""

    router: RouterWeight
    routing: Routing
    experts: ExpertsWeight
    shared: SharedWeight | None = None


@dataclass(frozen=True, slots=True)
class NormWeight:
    """An RMSNorm: weight [H], in the model's dtype or float32, and the epsilon under its root."""

    weight: torch.Tensor
    eps: float


class Pending(enum.Enum):
    """The kind of addend that a stream's residual still lacks."""

    NOTHING = enum.auto()
    WHOLE = enum.auto()  # [T, H]
    PARTS = enum.auto()  # [parts, T, H] float32, whose sum it is
    ALL_REDUCE = enum.auto()  # as WHOLE or PARTS, of this rank alone (all_reduce.py)


@dataclass(frozen=True, slots=True)
class Stream:
    """The residual stream between two norms: residual [T, H], and the pending addend of the next
    norm."""

    residual: torch.Tensor
    pending: torch.Tensor | None = None
    pending_is: Pending = Pending.NOTHING

    @property
    def is_settled(self) -> bool:
        return self.pending_is is Pending.NOTHING

    def plus(self, x: torch.Tensor) -> Stream:
        """Leave x [T, H] to be added by the next norm."""
        assert self.is_settled, "one sum at a time: a norm settles the stream first"
        return Stream(self.residual, x, Pending.WHOLE)

    def settled(self) -> Stream:
        """Add the pending addend, which must be whole, if no norm follows to add it."""
        if self.pending is None:
            return self
        assert self.pending_is is Pending.WHOLE, "parts are a norm's to add"
        return Stream(self.residual + self.pending)

    def of(self, tokens: torch.Tensor) -> Stream:
        """Return the rows of these tokens [T'] of a settled stream."""
        assert self.is_settled, "a norm settles the stream first"
        return Stream(self.residual[tokens])


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads of one attention layer on this rank; scale multiplies q·k. mask: the tokens that a
    query attends to. softcap: bounds scores, as softcap · tanh(score / softcap). sinks [Hq]
    float32, of a layer that has_sinks: a score of each head that takes part in every query's
    softmax and has no value (gpt-oss). sees_ahead: tokens of an image, or of an encoder's prompt,
    also attend to later ones, as far as a step's `last_seen` says; ahead: at most to so many of
    these, 0 for all."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    mask: MaskRule = CAUSAL
    softcap: float | None = None
    has_sinks: bool = False
    sees_ahead: bool = False
    ahead: int = 0
    sinks: torch.Tensor | None = field(default=None, compare=False, repr=False)

    def last_seen(self, step: AttentionMetaData) -> torch.Tensor | None:
        """Return the last position that each of the step's tokens attends to in this layer; None if
        none attends to a later token."""
        last = step.prompts.last_seen if self.sees_ahead else None
        if last is None or not self.ahead:
            return last
        found = step.per_step.get(key := f"last seen of {self.ahead}")
        if found is None:
            positions = step.prompts.positions
            assert positions is not None, "who knows the last seen tokens knows the positions"
            found = torch.minimum(last, positions.to(last.dtype) + self.ahead)
            step.per_step[key] = found
        return cast(torch.Tensor, found)

    @property
    def has_plain_scores(self) -> bool:
        """Return whether the softmax is over the scaled products alone."""
        return self.softcap is None and not self.has_sinks


@dataclass(frozen=True, slots=True)
class LayerCache:
    """A layer's KV cache: k, v [N, S, Hkv, D], contiguous. In fp8 with their scales [N, S, Hkv]
    float32: the key is k × k_scale."""

    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None

    @property
    def num_blocks(self) -> int:
        return self.k.shape[0]

    @property
    def block_size(self) -> int:
        return self.k.shape[1]


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Heads of one layer of latent attention on this rank (DeepSeek-V2, arXiv 2405.04434). A query
    has nope_dim elements without position and rope_dim that rotate. A latent of kv_rank elements
    and one rotated key of rope_dim represent the keys and values of all heads; a head's value has
    value_dim. scale multiplies q·k."""

    num_heads: int
    nope_dim: int
    rope_dim: int
    kv_rank: int
    value_dim: int
    scale: float

    @property
    def head_dim(self) -> int:
        """Compute the elements of a query's head."""
        return self.nope_dim + self.rope_dim

    @property
    def entry_dim(self) -> int:
        """Return the number of cached elements of a token."""
        return self.kv_rank + self.rope_dim

    def prefers_absorbed(self, queries: int, context: int) -> bool:
        """Return whether `queries` of one row over `context` tokens take fewer multiplications in
        the latent than with keys and values up-projected for every token."""
        absorbing = queries * self.kv_rank * (self.nope_dim + self.value_dim)
        absorbed = absorbing + queries * context * (self.entry_dim + self.kv_rank)
        up_projecting = context * self.kv_rank * (self.nope_dim + self.value_dim)
        return absorbed <= up_projecting + queries * context * (self.head_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class LatentTokens:
    """A step's tokens in latent attention: q [T, Hq, nope_dim + rope_dim], and of each token what
    is kept, entries [T, kv_rank + rope_dim]: latent, then key. Both may be parts of wider tensors,
    contiguous in their last dimension (and q's heads in theirs)."""

    q: torch.Tensor
    entries: torch.Tensor


@dataclass(frozen=True, slots=True)
class LatentCache:
    """A layer's cache of latent attention: entries [N, S, kv_rank + rope_dim], contiguous. In fp8
    entries are latents alone, [N, S, kv_rank], with their scales [N, S] float32 (the latent is
    entries × scale), and rotated keys are stored separately, [N, S, rope_dim] bfloat16."""

    entries: torch.Tensor
    keys: torch.Tensor | None = None
    scale: torch.Tensor | None = None

    @property
    def num_blocks(self) -> int:
        return self.entries.shape[0]

    @property
    def block_size(self) -> int:
        return self.entries.shape[1]


@dataclass(frozen=True, slots=True)
class Rotary:
    """The norm and rotation of q and k: cos_sin [positions, D] float32, cosines then sines of the
    pairs (i, i + D / 2); positions [T] int64; norms of q and k per head, weights [D], or None. In
    latent attention D is rope_dim, and k_norm the latent's, weight [kv_rank]."""

    cos_sin: torch.Tensor
    positions: torch.Tensor
    q_norm: NormWeight | None = None
    k_norm: NormWeight | None = None
