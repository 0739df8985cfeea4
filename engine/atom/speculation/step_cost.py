"""StepCost: the cost of a step with so many tokens, in units of one read of the weights.

A step reads the weights, and computes with them for each of its tokens. While few tokens share the
read, one more token is nearly free; in a mixture of experts, each token also reads its own experts.
Pure: computed from a model's facts and the ratio of the device's bandwidth to its compute. If steps
were timed at start, MeasuredCost replaces this estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from atom.sizing.model_facts import ModelFacts
from atom.sizing.weights import ENCODER, Sharding

# Tokens whose products take as long as reading the weights does.
_TOKENS_PER_READING = {"cpu": 6.0, "gpu": 128.0}
# Bytes that could be read while drafts are made, placed and verified: measured with atom-tiny on
# two cores; for about 0.3 ms on a card, whose steps are launched one by one if none were timed.
_DRAFTING_BYTES = {"cpu": 5e6, "gpu": 1.2e9}

# And while a layer is launched for one draft.
_LAYER_BYTES = {"cpu": 1e6, "gpu": 1.2e9}


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a step from the model's facts. experts_bytes: the share of the weights that is
    routed experts, of which a token uses `expert_parallel`; tokens_per_reading: tokens whose
    products take as long as reading the weights that they use; drafting: the extra cost of a step
    with any drafts; a_draft: for each draft of a row, as a share of the cost of a step without
    drafts, if a layer makes drafts one after the other."""

    tokens_per_reading: float
    experts_bytes: float = 0.0
    expert_parallel: float = 1.0
    drafting: float = 0.03
    a_draft: float = 0.0

    @property
    def read_by_a_token(self) -> float:
        """Return the share of the weights that a step of one token reads."""
        return (1.0 - self.experts_bytes) + self.experts_bytes * self.expert_parallel

    def of(self, tokens: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the cost of steps with so many tokens; only ratios of costs are meaningful."""
        untouched = (1.0 - self.expert_parallel) ** tokens
        read = (1.0 - self.experts_bytes) + self.experts_bytes * (1.0 - untouched)
        cost: NDArray[np.float64] = read + self.read_by_a_token * tokens / self.tokens_per_reading
        return cost

    def of_steps(
        self, rows: int, lengths: NDArray[np.float64], context: float = 0.0
    ) -> NDArray[np.float64]:
        """See Costs; what attention reads is left out."""
        costs = self.of(rows * (1.0 + lengths))
        drafting = np.where(lengths > 0, self.drafting, 0.0)
        of_steps: NDArray[np.float64] = costs + drafting + costs[0] * self.a_draft * lengths
        return of_steps


class Costs(Protocol):
    def of_steps(
        self, rows: int, lengths: NDArray[np.float64], context: float = 0.0
    ) -> NDArray[np.float64]:
        """Return the cost of steps with so many rows, all with the same number of drafts, for each
        of `lengths`; only ratios of costs are meaningful. context: tokens that a row attends to, on
        average."""


@dataclass(frozen=True, slots=True)
class DraftingLayers:
    """The layers that make drafts: a model's own MTP layers, or another model."""

    draft: ModelFacts | None = None

    def size_bytes(self, facts: ModelFacts) -> int:
        """Return the bytes of weights that one draft reads, its head included."""
        if self.draft is not None:
            return self.draft.weight_bytes()
        head = facts.vocab_size * facts.hidden_size * facts.weight_dtype_bytes
        return facts.weight_bytes(with_mtp=True) - facts.weight_bytes() + head


def step_cost(
    facts: ModelFacts, *, on_cpu: bool, drafting: DraftingLayers | None = None
) -> StepCost:
    """Build the cost of a model's steps on a kind of device; drafting: the draft layers, None for
    none."""
    whole = facts.weight_parts(None, Sharding(1, False), False)
    parts = [part for part in whole if part.name != ENCODER]  # which no step of tokens reads
    routed = sum(part.size_bytes for part in parts if part.name == "routed experts")
    experts = [alike.layer.mlp.experts for alike in facts.layer_counts]
    shares = [each.per_token / each.count for each in experts if each is not None]
    kind, size_bytes = "cpu" if on_cpu else "gpu", sum(part.size_bytes for part in parts)
    return StepCost(
        _TOKENS_PER_READING[kind],
        experts_bytes=routed / size_bytes,
        expert_parallel=max(shares, default=1.0),
        drafting=_DRAFTING_BYTES[kind] / size_bytes,
        a_draft=0.0
        if drafting is None
        else (drafting.size_bytes(facts) + _LAYER_BYTES[kind]) / size_bytes,
    )
