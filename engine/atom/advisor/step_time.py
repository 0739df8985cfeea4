"""StepTimer: the seconds of a step, from its work on one rank and the rates of the card.

t = sum over kinds of operations of max(bytes / bandwidth, products / peak) / share reached, and the
seconds of the step, its layers, rows and prompts beside them. All ranks of a model work alike, so
one rank's time is the step's. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.advisor.extra_work import NO_EXTRAS, ExtraWork
from atom.advisor.operations import ModelWork, Operation, Work
from atom.advisor.rates import ASSUMED, Rates
from atom.advisor.step_shape import StepShape
from atom.sizing.cards import Card

# One token's adapter is computed within the kernels of its products: a fifth of the seconds.
_OF_ONE_TOKEN = 0.2


@dataclass(frozen=True, slots=True)
class StepTimer:
    """Predicts steps. factor: multiplies every step, for the ends of an error's range; extras: the
    work of drafts, adapters and images."""

    work: ModelWork
    card: Card
    rates: Rates
    factor: float = 1.0
    extras: ExtraWork = NO_EXTRAS

    def seconds(self, shape: StepShape) -> float:
        """Return the seconds of a step."""
        operations = sum(self.operation_seconds(work) for work in self.work.of_step(shape))
        if self.extras is not NO_EXTRAS:
            operations += self.extra_seconds(shape)
        return self.factor * (operations + self.beside_seconds(shape))

    def extra_seconds(self, shape: StepShape) -> float:
        """Return the seconds of drafts, adapters and images in a step, launches included."""
        seconds = sum(self.operation_seconds(work) for work in self.extras.of_step(shape))
        fixed = self.rates.seconds
        for _, layers in self.extras.passes(shape):
            seconds += fixed.layer * layers.layers
        if self.extras.encoder is not None and shape.grids:
            seconds += fixed.layer * self.extras.encoder.layers
        if self.extras.adapters is not None and shape.adapters:
            layer = fixed.adapter or ASSUMED.seconds.adapter
            alone = _OF_ONE_TOKEN if shape.adapted_tokens == 1 else 1.0
            seconds += alone * layer * self.work.layers
            loaded = shape.loaded * self.extras.adapters.slot_bytes
            seconds += loaded / self.rates.host_bytes_per_second
        return seconds

    def operation_seconds(self, work: Work) -> float:
        """Return the seconds of one kind of operation in a step."""
        return ideal_seconds(work, self.card) / self.rates.share(work.operation, work.width)

    def beside_seconds(self, shape: StepShape) -> float:
        """Return the seconds of launches and of the host."""
        fixed = self.rates.seconds
        return (
            fixed.step
            + fixed.layer * self.work.layers
            + fixed.row * len(shape.contexts)
            + fixed.prompt * len(shape.chunks)
        )


def ideal_seconds(work: Work, card: Card) -> float:
    """Return the least seconds that the card's peaks allow."""
    if work.operation is Operation.COLLECTIVES:
        return work.moved_bytes / card.link_bytes_per_second
    moving = work.moved_bytes / card.bytes_per_second
    return max(moving, sum(count / card.flops_per_second(kind) for kind, count in work.flops))
