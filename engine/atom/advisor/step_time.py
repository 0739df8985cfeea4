"""StepTimer: the seconds of a step, from its work on one rank and the rates of the card.

t = sum over kinds of operations of max(bytes / bandwidth, products / peak) / share reached, and the
seconds of the step, its layers, rows and prompts beside them. All ranks of a model work alike, so
one rank's time is the step's. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.advisor.operations import ModelWork, Operation, Work
from atom.advisor.rates import Rates
from atom.advisor.step_shape import StepShape
from atom.sizing.cards import Card


@dataclass(frozen=True, slots=True)
class StepTimer:
    """Predicts steps. factor: multiplies every step, for the ends of an error's range."""

    work: ModelWork
    card: Card
    rates: Rates
    factor: float = 1.0

    def seconds(self, shape: StepShape) -> float:
        """Return the seconds of a step."""
        operations = sum(self.operation_seconds(work) for work in self.work.of_step(shape))
        return self.factor * (operations + self.beside_seconds(shape))

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
