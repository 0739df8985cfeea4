"""The layers of a decoder-only model as sizes: a kind of attention (attention/), and an MLP.

Values only: the readers of model families (families/) build them; weights.py and kv_layout.py
count their bytes. A model is its layers in order; if only sums matter, the distinct layers with
their counts.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from atom.sizing.attention.kinds import AttentionFacts
from atom.sizing.quantization import Quantization


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

    `matrices`: of an expert, gate, up and down; `shared_matrices`: of a shared one, if they have
    other names. `dense`: the module of a layer without experts.
    `stacked_by`: methods of quantisation whose checkpoints have one tensor of all experts, and
    their scales; `parted_by`: methods that first make each expert's matrices modules. `correction`:
    of the balance, if it is not below the router; in one row of a matrix with `correction_in_row`.
    """

    name: str = "mlp"
    dense: str = "mlp"
    router: str = "gate"
    shared: str = "shared_experts"
    matrices: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    shared_matrices: tuple[str, str, str] | None = None
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
    """The facts of one layer. `norms`: vectors of the hidden size in its norms, one for each
    RMSNorm; `output_factor`: whether a scalar multiplies its output; `per_layer_input`: elements of
    this layer's own embedding of each token (Gemma 4), 0 without; `streams`: residual streams that
    hyper-connections mix (DeepSeek V4), 0 for a single ordinary one.

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


# The state of a prompt that a head of labels reads: of its first token, or the mean of all.
HeadPooling = Literal["cls", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelHead:
    """The head of `labels` numbers: a square matrix, an activation, perhaps a norm, and the matrix
    of the labels. vectors: of the hidden size, which are the square matrix's bias and the norm."""

    labels: int
    vectors: int
    pooling: HeadPooling = "cls"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderFacts:
    """The parts of an encoder beside its layers.

    - `positions`: rows of the table of learned positions, 0 if heads rotate; `first_position`: the
      row of a prompt's first token.
    - `token_types`: rows of the table of segments, 0 without.
    - `norm_vectors`: of the hidden size, in the norms outside of the layers.
    - `head`: of labels, None for a model of hidden states.
    """

    norm_vectors: int
    positions: int = 0
    first_position: int = 0
    token_types: int = 0
    head: LabelHead | None = None

    def elements(self, hidden_size: int) -> int:
        """Count the elements of all these parts."""
        rows = self.positions + self.token_types + self.norm_vectors
        if self.head is None:
            return rows * hidden_size
        rows += hidden_size + self.head.vectors + self.head.labels
        return rows * hidden_size + self.head.labels


@dataclass(frozen=True, slots=True)
class FallbackFacts:
    """The weights of a model that transformers' own class computes. elements: of its parameters;
    buffer_bytes: of its other tensors; by config.json alone, both are bounds from above."""

    elements: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class ExtraInputs:
    """Inputs of a model besides its embedding. `joined_size`: width of the input that a draft model
    joins into its hidden state, 0 for other models; `per_layer_vocab_size`: of the embedding with
    an input per layer, 0 without; `encoder`: tables and head of a text encoder, None for decoders;
    `fallback`: all weights of a model without a family here, None for families."""

    joined_size: int = 0
    per_layer_vocab_size: int = 0
    encoder: EncoderFacts | None = None
    fallback: FallbackFacts | None = None


NO_INPUTS = ExtraInputs()


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
