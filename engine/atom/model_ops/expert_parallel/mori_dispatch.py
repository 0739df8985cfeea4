"""MoriDispatch: exchange tokens with their experts through AMD's MORI, which packs them on the
device.

The calls follow MORI's own contract (python/mori/ops/dispatch_combine.py), and pass arguments by
keyword: positions after the fourth have changed their meaning between releases, and a value in the
wrong position silently loses tokens. Undocumented behaviour is not used: no empty dispatch, no id
outside the experts. Tests run it against a double of three releases; it has not run on a device
yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from atom.collectives.expert_links import ExpertLinks
from atom.errors import ConfigError
from atom.model_ops.expert_parallel.dispatch import Arrived, own_share
from atom.model_ops.routing import Routed

# More than a card has compute units wait for each other for ever; 80 is the fewest of a card's.
_BLOCKS, _WARPS = 80, 8
# The blocks that send to other nodes. Tokens are silently lost or doubled unless 8 divides the
# number, and the kernel hangs unless some are left for the own node (ROCm/mori#507).
_REMOTE_BLOCKS = 40
_GROUP = "default"
_DTYPES = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class MoriShape:
    """The sizes of MORI's exchange: most_tokens of each rank, [T, hidden] with top_k experts each;
    every rank has `slots` of them. ranks_per_node: a node's ranks have consecutive numbers."""

    most_tokens: int
    hidden: int
    top_k: int
    slots: int
    dtype: torch.dtype
    ranks_per_node: int


class MoriDispatch:
    """Sends tokens to their experts' ranks by MORI. ops: the module mori.ops; shmem: mori.shmem,
    initialised."""

    def __init__(self, ops: Any, shmem: Any, links: ExpertLinks, shape: MoriShape) -> None:
        self.most_tokens = shape.most_tokens
        self._shape = shape
        self._rank = links.rank
        self._shmem = shmem
        kinds, is_near = ops.EpDispatchCombineKernelType, links.size == shape.ranks_per_node
        config = ops.EpDispatchCombineConfig(
            data_type=shape.dtype,
            rank=links.rank,
            world_size=links.size,
            hidden_dim=shape.hidden,
            scale_dim=0,
            scale_type_size=0,
            max_token_type_size=shape.dtype.itemsize,
            max_num_inp_token_per_rank=shape.most_tokens,
            num_experts_per_rank=shape.slots,
            num_experts_per_token=shape.top_k,
            warp_num_per_block=_WARPS,
            block_num=_BLOCKS,
            kernel_type=kinds.IntraNode if is_near else kinds.InterNodeV1LL,
            gpu_per_node=shape.ranks_per_node,
            rdma_block_num=0 if is_near else _REMOTE_BLOCKS,
        )
        self._op = ops.EpDispatchCombineOp(config=config)
        self._sent: torch.Tensor | None = None  # ids of the dispatch that is to be combined

    def dispatch(self, x: torch.Tensor, routed: Routed, slots: int) -> Arrived:
        assert slots == self._shape.slots, "one op is for layers of one number of experts"
        tokens = x.shape[0]
        if not tokens:
            x, routed = self._one_of_no_weight(x)
        # Ids of other ranks' padding are invalid: send them to the cheapest place, without weight.
        ids = routed.ids.clamp_min(0).contiguous()
        weights = routed.weights.masked_fill(routed.ids < 0, 0.0)
        arrived, weights, _, indices, count = self._op.dispatch(
            input=x.contiguous(), weights=weights, scales=None, indices=ids
        )
        self._sent = ids
        # The rows after those that arrived hold stale data.
        is_there = torch.arange(len(indices), device=indices.device).unsqueeze(1) < count
        own = own_share(Routed(indices, weights), self._rank * slots)
        present = torch.where(is_there, own.ids, -1)
        return Arrived(arrived, Routed(present, own.weights, is_partial=True), tokens)

    def combine(self, arrived: Arrived, result: torch.Tensor) -> torch.Tensor:
        assert self._sent is not None, "what is combined was dispatched"
        out, _ = self._op.combine(input=result.contiguous(), weights=None, indices=self._sent)
        own: torch.Tensor = out[: arrived.tokens]
        return own

    def close(self) -> None:
        """Give MORI's memory back."""
        self._shmem.shmem_finalize()

    def _one_of_no_weight(self, x: torch.Tensor) -> tuple[torch.Tensor, Routed]:
        """Make a token without weight for this rank's own experts, in place of an empty
        dispatch."""
        top_k, first = self._shape.top_k, self._rank * self._shape.slots
        ids = first + torch.arange(top_k, device=x.device, dtype=torch.int32) % self._shape.slots
        none = torch.zeros((1, top_k), dtype=torch.float32, device=x.device)
        return x.new_zeros((1, x.shape[1])), Routed(ids.unsqueeze(0), none)


def open_mori(links: ExpertLinks, shape: MoriShape) -> MoriDispatch:
    """Open MORI over the existing process group. Raises `ConfigError` if it cannot be used."""
    if shape.dtype not in _DTYPES:
        name = str(shape.dtype).removeprefix("torch.")
        raise ConfigError(
            f"expert_exchange mori sends bfloat16 and float32, and not {name}; use --dtype "
            "bfloat16, or --expert-exchange torch"
        )
    try:
        ops, shmem = import_module("mori.ops"), import_module("mori.shmem")
    except ImportError as error:
        raise ConfigError(
            f"expert_exchange mori: {error}; install AMD's mori, or use --expert-exchange torch"
        ) from error
    world = dist.group.WORLD
    assert world is not None, "ranks have met"
    # Python's name of it is not MORI's: that looks in torch's own register.
    register: Any = torch._C._distributed_c10d
    register._register_process_group(_GROUP, world)
    shmem.shmem_torch_process_group_init(group_name=_GROUP)
    return MoriDispatch(ops, shmem, links, shape)
