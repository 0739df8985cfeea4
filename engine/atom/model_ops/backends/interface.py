"""The contract of every operation that a backend may provide.

Shapes: T tokens of a step, R its rows, H hidden size, V vocabulary; Hq, Hkv heads, D head size; N
blocks of S tokens. Activations have the model's dtype and are contiguous unless said otherwise.
No operation keeps references to its arguments. An implementation may be captured into a graph if
its backend says so; it must not then read device values on the host.

`OPS` names the operations; `torch_ref` provides all of them and is the oracle of the others.
`FUSED_OPS` are several of them in one, which a backend may provide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from atom.model_ops.backends.step_mail import StepMail
from atom.utils.forward_context import AttentionMetaData


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads of one attention layer on this rank; scale multiplies q·k."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float


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


@dataclass(frozen=True, slots=True)
class LikelyLimits:
    """Which tokens of a row are likely enough to be drawn, one entry per row, on the device.

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


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """The limits of every slot's draws, on the device, the padding slot included: top_k [slots]
    int64, V for off; top_p [slots] float32, 1 for off; min_p [slots] float32, 0 for off."""

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor


@dataclass(frozen=True, slots=True)
class SlotTensors:
    """State of the running sequences, one entry per slot, on the device; `padding_slot` is the
    last one, which no sequence has.

    last_token [slots] int64; num_computed [slots] int64: position of last_token; block_tables
    [slots, max_blocks] int32; temperature [slots] float32; seed [slots] int64.
    """

    last_token: torch.Tensor
    num_computed: torch.Tensor
    block_tables: torch.Tensor
    temperature: torch.Tensor
    seed: torch.Tensor

    @property
    def padding_slot(self) -> int:
        return self.last_token.shape[0] - 1


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Inputs of one decode step, one entry per row. Padding rows have token 0 at position 0,
    slot_mapping -1 and context 0.

    input_ids, positions, slot_mapping [R] int64; context_lens [R] int32; block_tables
    [R, max_blocks] int32, valid as far as the row's context reaches; temperature [R] float32,
    seed [R] int64 and sample_positions [R] int64: of the token that the step draws.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    temperature: torch.Tensor
    seed: torch.Tensor
    sample_positions: torch.Tensor


class Ops(Protocol):
    """One callable per operation, bound to the backend chosen for it."""

    def embedding(self, ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """ids [T] int, weight [V, H] → [T, H]."""

    def prepare_linear(self, weight: torch.Tensor) -> torch.Tensor:
        """Once per weight of `linear`, after loading: the same shape, values and dtype, in the
        order of memory that suits the backend. The layer keeps the result instead of the weight."""

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """x [T, in], weight [out, in], bias [out] → [T, out]."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Over the last dimension, statistics in float32; returns a new tensor."""

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """residual' = x + residual; returns (rms_norm(residual'), residual'). May overwrite both
        inputs: the caller must not use them again. x may be what `linear_addend` returned."""

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, 2·I] → silu(x[:, :I]) * x[:, I:], [T, I]."""

    def qk_norm_rope_store(
        self,
        qkv: torch.Tensor,
        shape: AttentionShape,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        cos_sin: torch.Tensor,
        positions: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> torch.Tensor:
        """Split qkv [T, (Hq + 2·Hkv)·D], normalise q and k per head (if given weights [D]), rotate
        them (neox halves; cos_sin [positions, D] float32: cosines then sines), write k and v to
        their cache slots [N, S, Hkv, D]; returns q [T, Hq, D]. Hq may be 0, for keys and values
        alone. May overwrite qkv. A capturable backend takes slots below 0 as padding: nothing is
        written for them."""

    def paged_attention(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        shape: AttentionShape,
        metadata: AttentionMetaData,
    ) -> torch.Tensor:
        """Causal attention of q [T, Hq, D] over each row's cached tokens → [T, Hq·D]. A decode row
        of context 0 (padding, in a capturable backend) yields zeros."""

    def linear_addend(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`linear` whose result is only ever added to residual [T, out]. Returns what the next norm
        takes: (the product, residual), the product [T, out] or parts [S, T, out] float32 that
        `add_rms_norm` and the norm_* operations of the same backend add up; or (their sum, None),
        with which the residual begins anew. May overwrite residual."""

    def norm_linear(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm_weight: torch.Tensor,
        eps: float,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`add_rms_norm` (`rms_norm` where x begins the residual), then `linear`: (product [T,
        out], residual'). May overwrite x and residual."""

    def norm_gated_linear(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm_weight: torch.Tensor,
        eps: float,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`norm_linear`, then `silu_and_mul`: weight [2·I, in] → ([T, I], residual')."""

    def attention(
        self,
        qkv: torch.Tensor,
        shape: AttentionShape,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        cos_sin: torch.Tensor,
        positions: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        metadata: AttentionMetaData,
    ) -> torch.Tensor:
        """`qk_norm_rope_store`, then `paged_attention` → [T, Hq·D]. May overwrite qkv."""

    def sample(self, logits: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        """logits [R, V], any float dtype, compared and scaled in float32 → token ids [R] int64.
        temperature 0 takes the first maximum; otherwise one draw from softmax(logits /
        temperature). The draw depends on (seed, position) and the row's logits alone, never on the
        rest of the batch. A token of logit -inf is never chosen while there is another. May
        overwrite logits."""

    def keep_likely(self, logits: torch.Tensor, limits: LikelyLimits) -> torch.Tensor:
        """logits [R, V], any float dtype, compared and weighed in float32 → the same with tokens
        at -inf that no draw may give: those less likely than the k-th, then those less likely than
        the last of the smallest set whose probability reaches top-p, then those less likely than
        min-p times the most likely one. Tokens as likely as the last one kept are kept. May
        overwrite logits. A capturable backend decides by the tensors alone: what the host knows
        of them (candidates, any_top_p, any_min_p) may then be more than there is."""

    def apply_token_mask(
        self, logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor
    ) -> None:
        """Set logits [R, V] of forbidden tokens to -inf, in place. rows [G] int64, each once; bits
        [G, ceil(V / 32)] int32: of row rows[g] token t is allowed where bit t % 32 of word t // 32
        is set. Other rows are not touched."""

    def receive_step(self, mail: StepMail, slots: torch.Tensor, state: SlotTensors) -> None:
        """Take the next letter: its slots go to slots [S] int64, its appended blocks into the
        state's tables, and the turn goes on. Negative slots and the padding slot are padding."""

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
        mail: StepMail | None = None,
    ) -> None:
        """After a decode step: token_ids [R] become their slots' last_token, num_computed grows by
        one, and with `mail` they are the answer to the letter received last. Padding rows change
        no real slot."""


OPS = (
    "embedding",
    "prepare_linear",
    "linear",
    "rms_norm",
    "add_rms_norm",
    "silu_and_mul",
    "qk_norm_rope_store",
    "paged_attention",
    "sample",
    "keep_likely",
    "apply_token_mask",
    "receive_step",
    "prepare_decode",
    "commit_tokens",
)


# Operations that stand for several: composed of them (composed.py) unless one backend provides the
# whole and is the choice for all of its parts.
FUSED_OPS: dict[str, tuple[str, ...]] = {
    "linear_addend": ("linear", "add_rms_norm"),
    "norm_linear": ("rms_norm", "add_rms_norm", "linear"),
    "norm_gated_linear": ("rms_norm", "add_rms_norm", "linear", "silu_and_mul"),
    "attention": ("qk_norm_rope_store", "paged_attention"),
}


@dataclass(frozen=True, slots=True)
class Backend:
    """A named set of implementations.

    operations: op name → callable with the signature that `Ops` gives it; capturable: whether
    all of them may be captured into a graph; unusable: why the backend cannot be used here at all
    (empty when it can); dtypes: of the model and its KV cache that it is made for, empty for any.
    """

    name: str
    operations: dict[str, Callable[..., Any]]
    capturable: bool = False
    unusable: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
