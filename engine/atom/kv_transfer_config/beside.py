"""What an engine that exchanges KV pages cannot have beside it in this version. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideTransfer:
    """The options and facts of a model that the exchange of KV pages restricts. by_layers: tokens
    are drafted by layers with a KV cache of their own."""

    prefix_caching: bool
    keeps_states: bool
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
    if beside.keeps_states:
        yield (
            "the model keeps states beside its KV cache, which pages do not have in this version; "
            "compute prompts and answers in one engine"
        )
    if beside.pools:
        yield "a pooling model gives no tokens to compute elsewhere; leave it out"
    if beside.tensor_parallel > 1:
        yield (
            f"pages of {beside.tensor_parallel} tensor-parallel ranks are not put together in this "
            "version; use --tensor-parallel-size 1"
        )
    if beside.nodes > 1 or beside.shares_experts:
        yield "ranks that share experts or span nodes do not exchange pages; use one whole model"
    if beside.may_sleep:
        yield (
            "an engine that sleeps, or takes other weights, does not exchange pages in this "
            "version; leave out --enable-sleep-mode"
        )
    if beside.by_layers:
        yield "drafts by layers have a KV cache that pages do not have; use --method ngram"
