"""ModelFacts: the numbers of a decoder-only model from which its memory is sized.

They are read from a Hugging Face config.json. The module knows no tensors, files or devices, nor
the engine's support (engine_support.py). Parameter counts are exact: a test compares them with real
modules of every family. Absent keys mean the defaults of transformers' configuration classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from atom.sizing.architectures import family_of
from atom.sizing.attention.indexer import SharedIndexer
from atom.sizing.attention.kinds import LatentAttention, StateAttention
from atom.sizing.config_fields import Config, count, element_bytes, positive
from atom.sizing.errors import ModelFactsError
from atom.sizing.families.checkpoint_names import checkpoint_name
from atom.sizing.families.gemma4 import per_layer_vocab_size
from atom.sizing.families.reading import DraftHead, ties_head
from atom.sizing.layers import (
    NO_INPUTS,
    PLAIN_BLOCK,
    ExpertsBlock,
    ExtraInputs,
    LayerCount,
    LayerFacts,
    count_layers,
)
from atom.sizing.projection import Projection
from atom.sizing.quantization import Quantization
from atom.sizing.quantization.config import read_quantization
from atom.sizing.quantization.scheme import QuantizationScheme
from atom.sizing.text_part import WRAPPERS, layer_names, text_part, wrapper_of
from atom.sizing.vision.readers import VisionKind, vision_facts
from atom.sizing.weights import Sharding, WeightPart, weight_parts
from atom.sizing.weights.layer_matrices import projections


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """The scaling of positions. `kinds`: the kind of scaling, all kinds if there are several;
    `stretched_context`: the length that YaRN stretches positions to, 0 without it."""

    kinds: str = "default"
    stretched_context: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNames:
    """Names in a model's checkpoint.

    - `wrapper`: the multimodal architecture that the model is the text part of, "" for a text
      model.
    - `experts_block`: of the router and the experts.
    - `pairs`: of the checkpoint's parts that differ from the engine's names.
    - `mtp_prefix`: the prefix of the MTP layers' names, "" if their numbers continue the model's;
      `mtp_alias`: the first of these layers in lists of unquantised modules.
    """

    wrapper: str = ""
    experts_block: ExpertsBlock = PLAIN_BLOCK
    pairs: tuple[tuple[str, str], ...] = ()
    mtp_prefix: str = ""
    mtp_alias: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The shape of one model: its layers in order.

    - `weight_dtype_bytes`: the checkpoint's element size without quantisation.
    - `mtp_layers`: the checkpoint's own multi-token prediction layers, which only speculation uses.
    - `vision`: the encoder of images; None if prompts are text alone.
    """

    architecture: str
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    weight_dtype_bytes: int
    layers: tuple[LayerFacts, ...]
    mtp_layers: tuple[LayerFacts, ...] = ()
    quantization: QuantizationScheme | None = None
    rope: RopeScaling = RopeScaling()
    hidden_act: str = "silu"
    inputs: ExtraInputs = NO_INPUTS
    checkpoint: CheckpointNames = CheckpointNames()
    vision: VisionKind | None = None
    # Counted once: many sums over a model's layers use the counts.
    _counts: tuple[tuple[LayerCount, ...], tuple[LayerCount, ...]] = field(
        init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        layers, layer_counts = count_layers(self.layers)
        mtp_layers, mtp_counts = count_layers(self.mtp_layers)
        object.__setattr__(self, "layers", layers)
        object.__setattr__(self, "mtp_layers", mtp_layers)
        object.__setattr__(self, "_counts", (layer_counts, mtp_counts))

    @property
    def layer_counts(self) -> tuple[LayerCount, ...]:
        """Return the distinct layers with their numbers, for sums over a model."""
        return self._counts[0]

    @property
    def mtp_counts(self) -> tuple[LayerCount, ...]:
        """Return the distinct layers among `mtp_layers` with their numbers."""
        return self._counts[1]

    @classmethod
    def from_hf_config(cls, config: Mapping[str, object], *, images: bool = True) -> ModelFacts:
        """Read the facts from a config.json, or from the text part of a multimodal one and, with
        `images`, from its encoder's. Raises ModelFactsError naming the key and the accepted
        values."""
        whole, wrapper, config = config, wrapper_of(config), text_part(config)
        architecture, family = family_of(config)
        config = family.fields(config)
        quantization = read_quantization(config)
        hidden_size, num_layers = positive(config, "hidden_size"), _layer_count(config)
        block = (wrapper and WRAPPERS[wrapper].experts_block) or family.experts_block
        if quantization is not None:
            block = block.written_by(quantization.method)
        layers = [family.layer(config, index) for index in range(num_layers)]
        if all(isinstance(layer.attention, StateAttention) for layer in layers):
            raise ModelFactsError(
                "config.json: none of the model's layers attends, and all keep states, which is "
                "not supported; supported: models with a layer of full attention at least",
                field="layer_types",
            )
        if family.mtp.layer is not None:
            layers.append(family.mtp.layer(config))
        else:
            predicting = next(layer for layer in reversed(layers) if _predicts(layer))
            layers += count(config, family.mtp.key, default=family.mtp.default) * [predicting]
        draft = family.draft
        plain = cls(
            architecture=architecture,
            hidden_size=hidden_size,
            vocab_size=positive(config, draft.vocabulary_key if draft else "vocab_size"),
            max_position_embeddings=positive(config, "max_position_embeddings"),
            tie_word_embeddings=ties_head(family, config),
            weight_dtype_bytes=element_bytes(config),
            layers=tuple(layers[:num_layers]),
            mtp_layers=tuple(layers[num_layers:]),
            rope=RopeScaling(_rope_type(config), _stretched_context(config)),
            hidden_act=str(config.get(family.activation.key) or family.activation.default),
            inputs=ExtraInputs(
                joined_size=_joined_size(config, draft, hidden_size),
                per_layer_vocab_size=_per_layer_vocab_size(config, layers),
                encoder=None if family.encoder is None else family.encoder(config),
                fallback=None if family.fallback is None else family.fallback(config),
            ),
            checkpoint=CheckpointNames(
                wrapper=wrapper or "",
                experts_block=block,
                pairs=tuple(family.stored.names(config)),
                mtp_prefix=family.mtp.prefix,
                mtp_alias=family.mtp.alias,
            ),
            vision=vision_facts(wrapper, whole, config) if images else None,
        )
        return plain if quantization is None else plain.stored_as(quantization)

    def stored_as(self, scheme: QuantizationScheme) -> ModelFacts:
        """Return the facts with the matrices in the formats of `scheme`; raises ModelFactsError if
        the scheme gives experts of one layer different formats."""
        stored = [
            replace(layer, formats=tuple(self._formats(index, layer, scheme)))
            for index, layer in enumerate((*self.layers, *self.mtp_layers))
        ]
        count = self.num_layers
        layers, mtp_layers = tuple(stored[:count]), tuple(stored[count:])
        return replace(self, layers=layers, mtp_layers=mtp_layers, quantization=scheme)

    def _formats(
        self, index: int, layer: LayerFacts, scheme: QuantizationScheme
    ) -> Iterator[tuple[str, Quantization]]:
        """Yield the names of layer `index`'s quantised matrices, each with its format."""
        named = self.checkpoint
        layers = layer_names(index, named.wrapper or None)
        if index >= self.num_layers and named.mtp_prefix:
            layers = (f"{named.mtp_prefix}layers.{index - self.num_layers}",)
            layers += (named.mtp_alias,) if named.mtp_alias else ()
        for matrix in projections(layer, self.hidden_size, self.experts_block):
            if not matrix.quantizable:
                continue
            own = map(matrix.copy_name, range(matrix.copies))
            stack = self._stack_names(matrix)
            stored = scheme.format_of_copies(
                tuple(
                    checkpoint_name(f"{layer}.{name}", named.pairs).removesuffix(".weight")
                    for layer in layers
                    for name in (copy, *stack)
                )
                for copy in own
            )
            if stored is not None:
                yield matrix.name, stored

    def _stack_names(self, matrix: Projection) -> tuple[str, ...]:
        """Return the name of the tensor of all copies below its layer, if checkpoints have one."""
        block = self.experts_block
        if matrix.copies == 1 or block.stacking.in_modules:
            return ()
        is_last = matrix.name.endswith(f".{block.matrices[2]}")
        return (f"{matrix.stack_name}.{'down_proj' if is_last else 'gate_up_proj'}",)

    @property
    def longest_context(self) -> int:
        """Return the most tokens that positions support. A config.json may give the training length
        as max_position_embeddings, and a YaRN scaling that stretches it."""
        return max(self.max_position_embeddings, self.rope.stretched_context)

    @property
    def without_images(self) -> ModelFacts:
        """Return the facts of the text model alone."""
        return self if self.vision is None else replace(self, vision=None)

    @property
    def is_encoder(self) -> bool:
        """Return whether tokens attend in both directions, and the model generates nothing."""
        return self.inputs.encoder is not None

    @property
    def is_fallback(self) -> bool:
        """Return whether transformers' own class computes the model, which has no family here."""
        return self.inputs.fallback is not None

    @property
    def segments(self) -> int:
        """Return how many segments a prompt may have: a head that scores pairs of texts tells the
        second text from the first, if there is a table of segments."""
        encoder = self.inputs.encoder
        if encoder is None or encoder.head is None:
            return 1
        return min(max(1, encoder.token_types), 2)

    @property
    def keeps_states(self) -> bool:
        """Return whether any layer keeps a state of a sequence instead of its tokens."""
        return any(isinstance(each.layer.attention, StateAttention) for each in self.layer_counts)

    @property
    def experts_block(self) -> ExpertsBlock:
        """Return the names of router and experts in the checkpoint."""
        return self.checkpoint.experts_block

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def layer(self, index: int) -> LayerFacts:
        """Return layer `index` of the model, from 0."""
        return self.layers[index]

    def weight_bytes(
        self,
        dtype_bytes: int | None = None,
        tensor_parallel: int = 1,
        *,
        expert_parallel: bool = False,
        with_mtp: bool = False,
    ) -> int:
        """Return the bytes of weights on one rank; None keeps the checkpoint's formats.

        `with_mtp`: with the checkpoint's own layers for multi-token prediction, which are loaded
        only to speculate.
        """
        sharding = Sharding(tensor_parallel, expert_parallel)
        return self.bytes_on_rank(dtype_bytes, sharding, with_mtp=with_mtp)

    def bytes_on_rank(
        self, dtype_bytes: int | None, sharding: Sharding, *, with_mtp: bool = False
    ) -> int:
        """Return the bytes of weights on one rank of a model in this division."""
        return sum(part.size_bytes for part in self.weight_parts(dtype_bytes, sharding, with_mtp))

    def weight_parts(
        self, dtype_bytes: int | None, sharding: Sharding, with_mtp: bool
    ) -> tuple[WeightPart, ...]:
        """Count the bytes of weights on one rank by part of the model."""
        return weight_parts(self, dtype_bytes, sharding, with_mtp=with_mtp)


def _predicts(layer: LayerFacts) -> bool:
    """Return whether a layer can be an MTP layer: it keeps no state and does not share another
    layer's index."""
    match layer.attention:
        case StateAttention():
            return False
        case LatentAttention(latent=latent):
            return not isinstance(latent.index, SharedIndexer)
        case _:
            return True


def _per_layer_vocab_size(config: Config, layers: list[LayerFacts]) -> int:
    return per_layer_vocab_size(config) if layers[0].per_layer_input else 0


def _joined_size(config: Config, draft: DraftHead | None, hidden_size: int) -> int:
    """Return the width of the hidden states that a draft model joins; 0 for other models."""
    if draft is None:
        return 0
    return draft.joined_states * positive(config, "target_hidden_size", default=hidden_size)


def _layer_count(config: Config) -> int:
    return positive(config, "num_hidden_layers")


def _rope_type(config: Config) -> str:
    """Return the kind of scaling; all kinds if there are several."""
    return ", ".join(sorted({_kind(scaling) for scaling in _ropes(config)})) or "default"


def _stretched_context(config: Config) -> int:
    """Return the context length after YaRN's scaling, if any rope is of that kind; else 0."""
    longest, trained_for = 0, positive(config, "max_position_embeddings")
    for scaling in _ropes(config):
        factor = scaling.get("factor")
        if _kind(scaling) == "yarn" and isinstance(factor, int | float):
            key = "original_max_position_embeddings"
            longest = max(longest, int(factor * positive(scaling, key, default=trained_for)))
    return longest


def _ropes(config: Config) -> list[Config]:
    """Return the parameters of each kind of rope, from either of the two keys."""
    for key in ("rope_parameters", "rope_scaling"):
        scaling = config.get(key)
        if isinstance(scaling, Mapping) and scaling:
            nested = [value for value in scaling.values() if isinstance(value, Mapping)]
            return nested or [scaling]
    return []


def _kind(scaling: Config) -> str:
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    return "longrope" if kind == "su" else kind  # as Phi-3's first checkpoints call it
