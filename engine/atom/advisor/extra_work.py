"""The work of a step beside the model's own: drafts, adapters, and images. Pure.

Layers that draft compute the step's tokens, too, so that their cache has them, and every draft but
the first is a further pass over the rows; a whole model that drafts makes the first by one, too. Of
adapters, a step reads those that its rows have.
Drafts from the text (n-grams) cost next to nothing. An image passes the layers of its encoder once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from atom.advisor.extras import Adapters, Drafts, Pictures
from atom.advisor.operations import ModelWork, Operation, Work, model_work
from atom.advisor.step_shape import StepShape
from atom.sizing.cards import Precision
from atom.sizing.kv_layout import KvElement
from atom.sizing.model_facts import ModelFacts
from atom.sizing.overheads import lora_bytes
from atom.sizing.vision.facts import VisionFacts
from atom.sizing.weights import Sharding

_JOINED = 2  # hidden states that an MTP layer joins: the model's, and the token's embedding


@dataclass(frozen=True, slots=True)
class AdapterWork:
    """The work of adapters on one rank. slot_bytes: of one adapter; token_flops: of a token with an
    adapter."""

    slot_bytes: float
    token_flops: float

    def of_step(self, shape: StepShape) -> Iterator[Work]:
        """Yield the work of the adapters of a step's rows."""
        if shape.adapters:
            moved = shape.adapters * self.slot_bytes
            flops = ((Precision.WIDE, self.token_flops * shape.adapted_tokens),)
            yield Work(Operation.MATRICES, moved, flops, shape.adapted_tokens)


@dataclass(frozen=True, slots=True)
class EncoderWork:
    """The work of an image encoder, which every rank does. element_bytes: of its weights."""

    vision: VisionFacts
    element_bytes: int

    @property
    def layers(self) -> int:
        return self.vision.num_layers

    def of_step(self, shape: StepShape) -> Iterator[Work]:
        """Yield the work of the images of a step, all of which read the weights once."""
        if not shape.grids:
            return
        vision, element = self.vision, self.element_bytes
        in_layers = vision.num_layers * vision.plain_layer_parameters
        patches = [vision.encoded_patches(grid) for grid in shape.grids]
        tokens = sum(vision.image_tokens(grid) for grid in shape.grids)
        # Outside of the layers nearly all parameters are of the projection to the decoder.
        outside = max(0, vision.parameters - in_layers)
        flops = 2.0 * (in_layers * sum(patches) + outside * tokens)
        width = float(sum(patches))
        moved = float(vision.parameters * element)
        yield Work(Operation.MATRICES, moved, ((Precision.WIDE, flops),), width)
        pairs = float(sum(each * each for each in patches))
        seen = 4.0 * vision.num_layers * vision.hidden_size * pairs
        moved = 4.0 * vision.num_layers * vision.hidden_size * width * element
        yield Work(Operation.PROMPT_ATTENTION, moved, ((Precision.WIDE, seen),), width)


@dataclass(frozen=True, slots=True)
class ExtraWork:
    """The work beside a model's own on one rank. drafting: of the layers that draft, None if no
    layers do; by_whole_model: they are a model, which makes the first draft by a further pass;
    encoder: of images, None if no prompt has any."""

    drafting: ModelWork | None = None
    by_whole_model: bool = False
    adapters: AdapterWork | None = None
    encoder: EncoderWork | None = None

    def of_step(self, shape: StepShape) -> Iterator[Work]:
        """Yield the work of each kind of operation that the step has."""
        for each, layers in self.passes(shape):
            yield from layers.of_step(each)
        if self.adapters is not None:
            yield from self.adapters.of_step(shape)
        if self.encoder is not None:
            yield from self.encoder.of_step(shape)

    def passes(self, shape: StepShape) -> Iterator[tuple[StepShape, ModelWork]]:
        """Yield each pass of the layers that draft, in one step."""
        if self.drafting is None:
            return
        rows = len(shape.contexts)
        first = rows if shape.drafts and not self.by_whole_model else 0  # which get logits
        yield replace(shape, sampled=first, padding=0), self.drafting
        for _ in range(shape.drafts - (not self.by_whole_model)):
            yield StepShape(shape.contexts, rows, (), rows), self.drafting


NO_EXTRAS = ExtraWork()


def extra_work(
    facts: ModelFacts,
    kv: KvElement,
    sharding: Sharding,
    extras: tuple[Drafts | None, Adapters | None, Pictures | None],
    element_bytes: int | None = None,
) -> ExtraWork:
    """Compile the work of drafts, adapters and images. element_bytes: of every weight; None for the
    checkpoints' formats."""
    drafts, adapters, pictures = extras
    drafting = encoder = None
    element = facts.weight_dtype_bytes if element_bytes is None else element_bytes
    if pictures is not None and facts.vision is not None:
        encoder = EncoderWork(facts.vision, element)
    if drafts is not None and drafts.by_layers:
        drafting = _drafting(facts, kv, sharding, drafts, element_bytes)
    of_adapters = None
    if adapters is not None:
        size = lora_bytes(facts, adapters.room(1), element, sharding)
        of_adapters = AdapterWork(float(size), 2.0 * size / element)
    by_model = drafts is not None and drafts.method == "draft_model"
    return ExtraWork(drafting, by_model, of_adapters, encoder)


def _drafting(
    facts: ModelFacts,
    kv: KvElement,
    sharding: Sharding,
    drafts: Drafts,
    element_bytes: int | None,
) -> ModelWork:
    if drafts.facts is not None:  # whose own weights have the matrix that joins
        joined = drafts.facts.inputs.joined_size * drafts.facts.hidden_size
        work = model_work(drafts.facts, kv, Sharding(sharding.tensor_parallel),
                          element_bytes=element_bytes)  # fmt: skip
        return _with_flops(work, 2.0 * joined)
    layers = replace(facts, layers=facts.mtp_layers, mtp_layers=(), vision=None)
    work = model_work(layers, kv, sharding, element_bytes=element_bytes)
    joined = _JOINED * facts.hidden_size**2
    element = facts.weight_dtype_bytes if element_bytes is None else element_bytes
    work = replace(work, matrices_bytes=work.matrices_bytes + joined * element)
    return _with_flops(work, 2.0 * joined)


def _with_flops(work: ModelWork, flops: float) -> ModelWork:
    return replace(work, matrices_flops=(*work.matrices_flops, (Precision.WIDE, flops)))
