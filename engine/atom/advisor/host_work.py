"""HostWork: the operations of a step that a host launches one by one, by kind. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from atom.sizing.model_facts import ModelFacts
from atom.sizing.projection import Projection, Split
from atom.sizing.weights import stored_projections

SUMS_OF_A_LAYER = 2  # after attention, and after the MLP


@dataclass(frozen=True, slots=True)
class HostWork:
    """Counts of a model: its layers; layers of them with experts; products whose inputs are
    quantised or whose weights are unpacked; and sums of ranks. mixed: layers that attend for
    prompts and for answers, each by kernels of its own; 0 in a step of either alone."""

    layers: int = 0
    experts: int = 0
    quantised: int = 0
    sums: int = 0
    mixed: int = 0

    @classmethod
    def of(cls, facts: ModelFacts, ranks: int) -> HostWork:
        experts = quantised = 0
        for alike in facts.layer_counts:
            matrices = list(stored_projections(facts, alike.layer))
            experts += alike.count * any(each.copies > 1 for each in matrices)
            products = {
                product_of(each)
                for each in matrices
                if each.quantization is not None and not each.absorbed
            }
            quantised += alike.count * len(products)
        sums = SUMS_OF_A_LAYER * facts.num_layers if ranks > 1 else 0
        return cls(facts.num_layers, experts, quantised, sums)

    def beside_answers(self) -> HostWork:
        """Return the work of a step that has answers beside its prompts."""
        return replace(self, mixed=self.layers)


NO_HOST_WORK = HostWork()


def product_of(matrix: Projection) -> str:
    """Name the product that a matrix is part of: matrices of a module that share their inputs are
    multiplied at once, as are stacks of experts."""
    if matrix.copies > 1:
        return matrix.stack_name
    module = matrix.name.rpartition(".")[0]
    return module if matrix.split is Split.OUTPUTS else matrix.name
