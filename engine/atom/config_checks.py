"""Checks of the engine's options together, whatever the model is."""

from __future__ import annotations

import dataclasses
import logging

from atom.config_values import EngineOptions, check_tiers
from atom.errors import ConfigError
from atom.sizing.options.option import range_problems

logger = logging.getLogger(__name__)


def check_options(options: EngineOptions) -> None:
    """Raise `ConfigError` for options that contradict each other whatever the model is."""
    scheduler = options.scheduler
    if scheduler.max_num_batched_tokens < scheduler.max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens must be at least {scheduler.max_num_seqs}, got "
            f"{scheduler.max_num_batched_tokens}"
        )
    for part in dataclasses.fields(options):
        for problem in range_problems(getattr(options, part.name)):
            raise ConfigError(problem)
    if scheduler.delay_factor and scheduler.policy != "prefill_first":
        logger.warning(
            "scheduler_delay_factor %g has no effect with the policy %s, which keeps no prompt "
            "waiting; use --scheduling-policy prefill_first, or leave it out",
            *(scheduler.delay_factor, scheduler.policy),
        )
    if options.kv_events is not None and not options.cache.enable_prefix_caching:
        raise ConfigError("kv_events tells of cached blocks, and prefix caching is off; drop one")
    _check_nodes(options)
    _check_sleep(options)
    _check_sharing(options)
    if options.model.runner == "pooling":
        check_pooling(options)
    check_tiers(options.tier, caches=options.cache.enable_prefix_caching, nodes=options.nodes.count)


def check_pooling(options: EngineOptions) -> None:
    """Raise `ConfigError` for options that a pooling model cannot have."""
    if options.speculative is not None:
        raise ConfigError(
            "speculation drafts tokens, and a pooling model gives none; leave it out, or use "
            "--runner generate"
        )


def _check_sleep(options: EngineOptions) -> None:
    """Raise `ConfigError` for settings of sleep mode that need it, and if the ranks cannot
    sleep."""
    sleep = options.sleep
    asked = {
        "--sleep-queue": sleep.holds_requests,
        "--sleep-idle-seconds": sleep.idle_seconds is not None,
    }
    for flag, given in asked.items():
        if given and not sleep.enabled:
            raise ConfigError(
                f"{flag} is for an engine that may sleep; give --enable-sleep-mode too, or "
                "leave it out"
            )
    if sleep.enabled and options.parallel.dp_attention:
        raise ConfigError(
            "--enable-sleep-mode: ranks that share experts (--enable-dp-attention) do not "
            "sleep; leave one of them out"
        )
    if sleep.enabled and options.nodes.count > 1:
        raise ConfigError(
            "--enable-sleep-mode: an engine over several nodes does not sleep; leave it "
            "out, or use one node"
        )


def _check_nodes(options: EngineOptions) -> None:
    nodes, size = options.nodes.count, options.parallel.tensor_parallel_size
    ranks = options.parallel.data_parallel_size
    if not 0 <= options.nodes.rank < nodes:
        raise ConfigError(f"node_rank must be within 0 to nnodes - 1, got {options.nodes.rank}")
    if ranks > 1 and options.parallel.expert_parallel:
        return  # these ranks are divided over nodes: see `_check_experts`
    if size % nodes:
        raise ConfigError(
            f"tensor_parallel_size {size} over {nodes} nodes: give a multiple of {nodes}, so that "
            "every node has as many ranks"
        )
    if nodes > 1 and ranks > 1:
        raise ConfigError(
            "data_parallel_size: several copies of the model over several nodes are several "
            "servers; start one for each with data_parallel_size 1, or let the ranks share experts "
            "by --enable-dp-attention and --enable-expert-parallel"
        )


def _check_sharing(options: EngineOptions) -> None:
    """Raise `ConfigError` for settings of ranks that share experts, if these ranks share none."""
    parallel = options.parallel
    if parallel.dp_attention and not parallel.expert_parallel:
        raise ConfigError(
            "enable_dp_attention is for ranks that share experts; add --enable-expert-parallel, or "
            "leave it out for ranks with whole models"
        )
    if parallel.expert_exchange != "torch":
        _check_exchange(options)
    if options.balance is not None and not (parallel.expert_parallel and parallel.dp_attention):
        raise ConfigError(
            "enable_eplb moves experts between ranks that share them; add --data-parallel-size, "
            "--enable-dp-attention and --enable-expert-parallel, or leave it out"
        )


def _check_exchange(options: EngineOptions) -> None:
    """Raise `ConfigError` if the requested library cannot exchange tokens with their experts."""
    parallel = options.parallel
    name, near = parallel.expert_exchange, parallel.data_parallel_size // options.nodes.count
    if not parallel.dp_attention:
        raise ConfigError(
            f"expert_exchange {name} is for ranks with tokens of their own; add "
            "--enable-dp-attention, or leave it out"
        )
    if near.bit_count() != 1:
        raise ConfigError(
            f"expert_exchange {name} is for 1, 2, 4 or 8 ranks of a node, and not for {near}; use "
            "another --data-parallel-size, or --expert-exchange torch"
        )
