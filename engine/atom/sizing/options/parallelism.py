"""Options of the ranks: tensor, data and expert parallelism, nodes, and the time of a stall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from atom.sizing.options.option import CrdField, Flag, Range, option

RoutingPolicy = Literal["least_tokens", "round_robin"]
ExpertTransport = Literal["torch", "mori"]

LEAST_STALL_SECONDS = 2.0  # two heartbeats
_SET_BY_OPERATOR = CrdField(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelOptions:
    """Ranks of data, tensor and expert parallelism. expert_parallel: each rank has whole experts,
    instead of a part of each expert. dp_attention: ranks of data parallelism share the experts of
    one model. expert_exchange: the transport of few tokens to their experts."""

    tensor_parallel_size: int = option(
        1,
        "devices that share a copy of the model, each with a part of it",
        flag=Flag(short="-tp"),
        within=Range(1),
        crd=CrdField(
            "parallelism.tensor",
            "Tensor-parallel size: devices that share one copy of the model, at most 8 on each "
            "node; default: {default}.",
            most=128,
        ),
    )
    data_parallel_size: int = option(
        1,
        "ranks: engine processes with a copy of the model and a KV cache each",
        flag=Flag(short="-dp"),
        within=Range(1),
        crd=CrdField(
            "parallelism.data",
            "Data-parallel size: copies of the model in each pod, behind one address, each on "
            "tensor devices of its own; amd only, unless they share experts. At most 8 on each "
            "node. Default: {default}.",
            most=128,
        ),
    )
    data_parallel_routing: RoutingPolicy = option(
        "least_tokens",
        "which rank serves a request: the one with the fewest open tokens, or the next",
    )
    expert_parallel: bool = option(
        False,
        "ranks have whole experts each, instead of a part of each: those of "
        "--tensor-parallel-size, or with --enable-dp-attention those of --data-parallel-size",
        keyword="enable_expert_parallel",
        crd=CrdField(
            "parallelism.expert",
            "Every device holds whole experts of a mixture, instead of a part of each: the tensor "
            "devices of a copy, or with data the copies, which then share the experts and may be "
            "on several nodes. Default: {default}.",
        ),
    )
    dp_attention: bool = option(
        False,
        "ranks of --data-parallel-size share one model's experts, and have all else each",
        keyword="enable_dp_attention",
        crd=CrdField("parallelism.expert"),
    )
    expert_exchange: ExpertTransport = option(
        "torch",
        "how the tokens of small steps go to their experts and back: torch's collectives, or "
        "AMD's mori if it is installed",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EPLBFlags:
    """The flags of `EPLBConfig`, which rebalances experts. eplb_config: a JSON document."""

    enable_eplb: bool = option(
        False, "move experts between these ranks, so that each has as many tokens"
    )
    eplb_config: str | None = option(
        None,
        "when, by what, and copies: "
        '{"window_size": 1000, "step_interval": 3000, "num_redundant_experts": 0}',
        flag=Flag(metavar="JSON"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """The place of this machine among the `count` nodes that share a model: a copy of it, or its
    experts. address, port: where the first node, of rank 0, waits for the others."""

    count: int = option(
        1,
        "machines that share a copy of the model, or its experts, with as many devices each",
        keyword="nnodes",
        within=Range(1),
        crd=CrdField(
            "parallelism.nodes",
            "Nodes that these devices are spread over, one pod on each, started and restarted as a "
            "group; more than 1 needs the LeaderWorkerSet CRD. Default: {default}.",
            most=16,
        ),
    )
    rank: int = option(
        0,
        "which of them this is; 0 serves, the others compute for it",
        keyword="node_rank",
        crd=_SET_BY_OPERATOR,
    )
    address: str = option(
        "127.0.0.1",
        "name or address of the first machine, by which the others reach it",
        keyword="master_addr",
        crd=_SET_BY_OPERATOR,
    )
    port: int = option(
        29_500,
        "port on which it waits for them",
        keyword="master_port",
        within=Range(1, 65_535),
        crd=_SET_BY_OPERATOR,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthOptions:
    """Bounds of a healthy engine. stall_seconds: a rank is unhealthy that computes nothing for so
    long, with work or without."""

    stall_seconds: float = option(
        120.0,
        "/health and /live fail once a rank has made no progress for so long",
        within=Range(LEAST_STALL_SECONDS),
    )
