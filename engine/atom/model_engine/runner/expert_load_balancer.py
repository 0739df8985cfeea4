"""ExpertLoadBalancer: measures periodically which experts are chosen, and places them again.

Ranks that share experts number their steps alike, so each knows without a message when all look:
before the same step, with no layer in flight. The tokens do not change, only the ranks that compute
them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from atom.collectives.expert_links import ExpertLinks
from atom.eplb_config import EPLBConfig
from atom.model_ops.expert_parallel.eplb import ExpertLoad, rank_loads, rebalanced
from atom.model_ops.expert_parallel.expert_transfer import move_experts
from atom.model_ops.moe.experts import ExpertParallelExperts

logger = logging.getLogger(__name__)


class ExpertLoadBalancer:
    """Moves experts between ranks by load; `layers` are all with experts, in order."""

    def __init__(
        self, layers: Sequence[ExpertParallelExperts], links: ExpertLinks, config: EPLBConfig
    ) -> None:
        self._layers = layers
        self._links = links
        self._config = config
        self.load = ExpertLoad()

    @staticmethod
    def of(model: nn.Module, links: ExpertLinks, config: EPLBConfig) -> ExpertLoadBalancer:
        """Build the balancer of a model's experts."""
        modules = model.modules()
        layers = [module for module in modules if isinstance(module, ExpertParallelExperts)]
        return ExpertLoadBalancer(layers, links, config)

    @torch.inference_mode()
    def before(self, step: int) -> None:
        """Balance before a step if it is due. The step's number is equal on all ranks."""
        interval = self._config.interval_steps
        if step and step % interval == 0:
            self._look()
        if (step + self._config.window_steps) % interval == 0:
            for layer in self._layers:
                layer.places.load.zero_()

    def _look(self) -> None:
        counted = torch.stack([layer.places.load for layer in self._layers])
        loads = self._links.sum_counts(counted).cpu().numpy()
        mean = most = moves = 0.0
        after = 0.0
        for layer, load in zip(self._layers, loads, strict=True):
            old = layer.places.placement
            new = rebalanced(load, old, self._links.size)
            by_rank = rank_loads(load, old, self._links.size)
            mean, most = mean + by_rank.mean(), most + by_rank.max()
            after += float(rank_loads(load, new, self._links.size).max())
            moves += move_experts([*layer.stacks()], old, new, self._links)
            layer.places.place(new)
        self.load = ExpertLoad(int(mean), int(most), self.load.moves + int(moves))
        if self._links.rank == 0:
            logger.info(
                "experts: balance %.2f, and %.2f with the same tokens once %d slots have moved",
                _share(mean, most), _share(mean, after), moves,
            )  # fmt: skip


def _share(mean: float, most: float) -> float:
    return float(np.divide(mean, most)) if most else 1.0
