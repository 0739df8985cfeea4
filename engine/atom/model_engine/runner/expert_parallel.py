"""Derive a runner's place among ranks that hold whole experts from an engine's options."""

from __future__ import annotations

import torch

from atom.collectives.expert_links import ExpertLinks
from atom.config import Config
from atom.errors import ConfigError
from atom.model_ops.expert_parallel.dispatch import PaddedDispatch
from atom.model_ops.expert_parallel.mori_dispatch import MoriShape, open_mori
from atom.model_ops.parallel import ExpertRanks


def expert_ranks(config: Config) -> ExpertRanks | None:
    """Find this rank's place among those with whole experts each; None where experts are
    divided."""
    parallel = config.parallel
    if parallel.shares_experts:
        balance = parallel.balance
        return ExpertRanks(
            parallel.data_parallel_size,
            parallel.data_parallel_rank,
            redundant=balance.redundant if balance is not None else 0,
            may_move=balance is not None,
        )
    if parallel.expert_parallel and parallel.tensor_parallel_size > 1:
        return ExpertRanks(parallel.tensor_parallel_size, parallel.tensor_parallel_rank)
    return None


def open_dispatch(
    config: Config, links: ExpertLinks, experts: ExpertRanks, dtype: torch.dtype
) -> PaddedDispatch:
    """Open the configured exchange of tokens with their experts. Raises `ConfigError`."""
    if config.parallel.expert_exchange == "torch":
        return PaddedDispatch(links)
    facts = config.model.facts
    counts = {each for layer in facts.layers if (each := layer.mlp.experts) is not None}
    if len({(each.count, each.per_token) for each in counts}) > 1:
        raise ConfigError(
            "expert_exchange mori is for layers with one number of experts; use --expert-exchange "
            "torch"
        )
    (one, *_) = counts
    shape = MoriShape(
        most_tokens=config.scheduler.max_num_seqs,
        hidden=facts.hidden_size,
        top_k=one.per_token,
        slots=experts.slots(one.count),
        dtype=dtype,
        ranks_per_node=config.parallel.ranks_per_node,
    )
    return PaddedDispatch(links, open_mori(links, shape))
