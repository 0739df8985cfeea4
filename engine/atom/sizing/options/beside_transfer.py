"""The options and facts of a model that exclude the exchange of KV pages in this version. Pure.

The engine refuses them at its start, and the operator at admission, by this one rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideTransfer:
    """The options and facts of a model that the exchange of KV pages restricts.

    by_layers: tokens are drafted by layers with a KV cache of their own."""

    prefix_caching: bool
    pools: bool
    tensor_parallel: int
    nodes: int
    shares_experts: bool
    by_layers: bool
    may_sleep: bool


def transfer_problems(beside: BesideTransfer) -> Iterator[str]:
    """Yield why an engine cannot exchange KV pages, each with its remedy."""
    if not beside.prefix_caching:
        yield "received pages are found in the prefix cache, which is off; leave out its flag"
    if beside.pools:
        yield "a pooling model gives no tokens to compute elsewhere; leave it out"
    if beside.nodes > 1:
        yield (
            f"the {beside.tensor_parallel} ranks of a model on {beside.nodes} nodes have no memory "
            "in common to put pages together; use --nnodes 1"
        )
    if beside.shares_experts:
        yield "ranks that share experts do not exchange pages; use one whole model"
    if beside.may_sleep:
        yield (
            "an engine that sleeps, or takes other weights, does not exchange pages in this "
            "version; leave out --enable-sleep-mode"
        )
    if beside.by_layers:
        yield "drafts by layers have a KV cache that pages do not have; use --method ngram"
