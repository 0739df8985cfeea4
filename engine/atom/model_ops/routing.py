"""Routing: the rule by which a token's experts are chosen and weighed, and the result.

Softmax over all experts (Mixtral, Qwen), groups of experts of which a few are considered
(DeepSeek-V2, arXiv 2405.04434), sigmoids with a correction for choosing alone (DeepSeek-V3, arXiv
2412.19437). A softmax over the chosen experts alone (gpt-oss) is a softmax over all, renormalised.
Data only.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch


class Scoring(enum.Enum):
    """The function that turns an expert's logit into a score."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    SQRT_SOFTPLUS = "sqrtsoftplus"  # the root of log(1 + e^x) (DeepSeek V4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """A routing: choose the top_k experts with the highest corrected scores. Their weights are the
    scores without correction, divided by their sum with `renormalize`, times `scale`. groups: of
    equally many experts; the choice is from `groups_kept` of them, those whose `group_top` best
    scores have the highest sum. weighs_inputs: a weight multiplies its expert's input, and not its
    output (Llama 4)."""

    top_k: int
    scoring: Scoring = Scoring.SOFTMAX
    renormalize: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_kept: int = 1
    group_top: int = 1
    weighs_inputs: bool = False

    @property
    def is_grouped(self) -> bool:
        """Return whether some groups are left out."""
        return self.groups_kept < self.groups


@dataclass(frozen=True, slots=True)
class Routed:
    """Each token's experts: ids [T, k] int32, each once, and weights [T, k] float32. is_partial: an
    id below 0 or beyond the experts belongs to another rank, and adds nothing here."""

    ids: torch.Tensor
    weights: torch.Tensor
    is_partial: bool = False
