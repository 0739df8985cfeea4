"""The KV cache tensors of one device: how many blocks fit, and their allocation.

The arithmetic is `atom.sizing`, shared with the operator; here it gets measured numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import psutil
import torch

from atom.collectives.group import Group
from atom.config import Config, SchedulerConfig
from atom.errors import ConfigError
from atom.model_ops.attention import CachedAttention, CachedLayer, CacheLayout, StateLayer
from atom.sizing.cache_groups import CacheGroup
from atom.sizing.errors import DoesNotFitError
from atom.sizing.kv_budget import (
    KvBudget,
    beside_states,
    checkpoint_tokens,
    fewer_blocks,
    filling_tokens,
    plan_kv_cache,
)
from atom.sizing.kv_layout import KvLayout
from atom.sizing.limits import DeviceMemory, RunLimits
from atom.sizing.overheads import CPU_RUNTIME_BYTES
from atom.utils.device import Device

# Of a process that has begun to use a GPU, before it loads anything: half as much was seen.
_MOST_CONTEXT_BYTES = 1 << 30


def run_limits(config: Config) -> RunLimits:
    """Return the configured limits of concurrent work."""
    scheduler = config.scheduler
    return RunLimits(
        block_size=config.cache.block_size,
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=config.model.max_model_len,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        num_speculative_tokens=scheduler.num_speculative_tokens,
        prefix_caching=config.cache.enable_prefix_caching,
    )


def plan_blocks(config: Config, memory: DeviceMemory, layout: KvLayout) -> KvBudget:
    """Plan blocks for the KV cache. Raises `ConfigError` with the numbers if it cannot fit."""
    if config.cache.num_kv_blocks is not None:
        memory = beside_states(memory, layout, run_limits(config))
        left_bytes = memory.total_bytes - memory.used_bytes
        return _chosen_blocks(config, config.cache.num_kv_blocks, layout, left_bytes)
    try:
        return plan_kv_cache(memory, layout, run_limits(config))
    except DoesNotFitError as error:
        raise ConfigError(f"{config.model.served_name} does not fit: {error}") from error


def agreed(budget: KvBudget, group: Group, device: torch.device, longest: int) -> KvBudget:
    """Return the smallest budget of a group's ranks, since they share one scheduler's block
    numbers. longest: tokens of a sequence."""
    if group.size == 1:
        return budget
    own = torch.tensor([[budget.num_blocks, budget.num_checkpoints]], device=device)
    # [ranks, 1, 2] or [1, 2 · ranks]: however they are put together, in turn.
    blocks, checkpoints = group.gather(own).view(-1, 2).min(dim=0).values.tolist()
    return fewer_blocks(replace(budget, num_checkpoints=checkpoints), blocks, longest)


def least(group: Group, device: torch.device, number: int) -> int:
    """Return the least of the numbers that a group's ranks give here."""
    if group.size == 1:
        return number
    return int(group.gather(torch.tensor([[number]], device=device)).min())


def _chosen_blocks(config: Config, count: int, layout: KvLayout, left_bytes: int) -> KvBudget:
    """Return a budget of `count` blocks, the user's choice. left_bytes: device memory that weights,
    activations and runtime leave. Raises `ConfigError` if the blocks hold less than one sequence of
    max_model_len or do not fit the device."""
    block_size, longest = config.cache.block_size, config.model.max_model_len
    block_bytes = layout.bytes_per_token * block_size
    tokens = filling_tokens(layout, count, block_size, longest)
    if count < layout.blocks_of_sequence(longest, block_size):
        raise ConfigError(
            f"num_kv_blocks {count} holds {tokens} tokens, fewer than one sequence of "
            f"max_model_len {longest}; raise the one or lower the other"
        )
    if count * block_bytes > left_bytes:
        raise ConfigError(
            f"num_kv_blocks {count} takes {count * block_bytes // 2**20:,} MiB, but the device has "
            f"{max(left_bytes, 0) // 2**20:,} MiB beside weights, activations and runtime; use at "
            f"most {max(left_bytes, 0) // block_bytes}, or leave it out"
        )
    return KvBudget(
        num_blocks=count,
        block_size=block_size,
        block_bytes=block_bytes,
        limited_by="num_kv_blocks",
        available_bytes=count * block_bytes,
        tokens=tokens,
        layout=layout,
        num_checkpoints=_chosen_checkpoints(config, layout, tokens, left_bytes),
    )


def _chosen_checkpoints(config: Config, layout: KvLayout, tokens: int, left_bytes: int) -> int:
    """Return how many checkpoints of states belong to `tokens` tokens in blocks, as far as they fit
    in the remaining memory."""
    interval = checkpoint_tokens(layout, config.cache.block_size)
    if not interval or not config.cache.enable_prefix_caching:
        return 0
    left_bytes -= tokens * layout.bytes_per_token
    return max(0, min(tokens // interval, left_bytes // layout.state_bytes))


@dataclass(frozen=True, slots=True)
class Place:
    """Describe a cache's device, and its elements' dtype."""

    dtype: torch.dtype
    device: torch.device


def allocate(
    layers: Sequence[CachedLayer],
    groups: Sequence[CacheGroup],
    num_blocks: int,
    block_size: int,
    place: Place,
) -> list[torch.Tensor]:
    """Assign every attention layer its cache: the layers at the same position of each group (of
    indices into `layers`) share tensors of one size, since a block is in use by one group alone; a
    tensor of another size, which scales may have, is one more (`group_layers` counts it). If a
    group has several layers at a position, block b of the pool is blocks of theirs from b ·
    layers_per_tensor on, the first layer's, the second's, and so on: `OwnBlocks` numbers them so.
    Returns the tensors."""
    if any(group.offsets for group in groups):
        return [_allocate_packed(layers, groups, num_blocks, block_size, place)]
    tensors: list[torch.Tensor] = []
    for position in range(max(group.num_tensors for group in groups)):
        sharing = [
            (_attention(layers[index]), number, place_in_block)
            for number, group in enumerate(groups)
            for place_in_block, index in enumerate(_at(group, position))
        ]
        memory: dict[tuple[int, int], torch.Tensor] = {}
        for layer, number, place_in_block in sharing:
            own = []
            for index, tensor in enumerate(layer.cache_layout(block_size, place.dtype).tensors):
                size = math.prod(tensor.shape)
                elements = size * groups[number].layers_per_tensor
                if (index, elements) not in memory:
                    reserved = _reserved((num_blocks * elements,), tensor.dtype, place.device)
                    memory[index, elements] = reserved
                whole = memory[index, elements]
                own.append(whole[place_in_block * size :].view(-1, *tensor.shape))
            layer.bind(own, number)
        tensors += memory.values()
    return tensors


def _allocate_packed(
    layers: Sequence[CachedLayer],
    groups: Sequence[CacheGroup],
    num_blocks: int,
    block_size: int,
    place: Place,
) -> torch.Tensor:
    """Assign layers their parts of each block, which are stored one after another in it. Returns
    the pool's one tensor."""
    layouts = [
        [_attention(layers[at]).cache_layout(block_size, place.dtype) for at in group.layers]
        for group in groups
    ]
    sizes = [
        group.offsets[-1] * block_size + _block_bytes(own[-1])
        for group, own in zip(groups, layouts, strict=True)
    ]
    # A token's bytes of entries are rounded up, so the last layer may store less.
    block_bytes = -(-max(sizes) // block_size) * block_size
    pool = _reserved((num_blocks, block_bytes), torch.uint8, place.device)
    for number, (group, own) in enumerate(zip(groups, layouts, strict=True)):
        for at, offset, layout in zip(group.layers, group.offsets, own, strict=True):
            first, parts = offset * block_size, []
            for tensor in layout.tensors:
                end = first + math.prod(tensor.shape) * tensor.dtype.itemsize
                of_blocks = pool[:, first:end].view(tensor.dtype)
                parts.append(of_blocks.view(num_blocks, *tensor.shape))
                first = end
            _attention(layers[at]).bind(parts, number)
    return pool


def _block_bytes(layout: CacheLayout) -> int:
    return sum(math.prod(each.shape) * each.dtype.itemsize for each in layout.tensors)


def _at(group: CacheGroup, position: int) -> tuple[int, ...]:
    first = position * group.layers_per_tensor
    return group.layers[first : first + group.layers_per_tensor]


def _attention(layer: CachedLayer) -> CachedAttention:
    assert isinstance(layer, CachedAttention), "groups are of layers that keep tokens"
    return layer


@dataclass(frozen=True, slots=True)
class StateCounts:
    """Count the states that a layer keeps: of slots, of checkpoints; and drafts of each slot."""

    slots: int
    checkpoints: int
    drafts: int

    @staticmethod
    def of(scheduler: SchedulerConfig, checkpoints: int) -> StateCounts:
        """Count the states of a scheduler's rows, and of one row more that pads steps."""
        return StateCounts(
            slots=scheduler.max_num_seqs + 1,
            checkpoints=checkpoints,
            drafts=scheduler.num_speculative_tokens,
        )


def allocate_states(
    layers: Sequence[CachedLayer], counts: StateCounts, device: torch.device
) -> list[torch.Tensor]:
    """Assign every layer that keeps a state one for each slot and for each checkpoint, and room for
    the inputs of drafts. Returns the tensors."""
    tensors: list[torch.Tensor] = []

    def zeros(*leading: int, shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        made = [_reserved((*leading, *shape), torch.float32, device) for shape in shapes]
        tensors.extend(made)
        return made

    for layer in layers:
        if isinstance(layer, StateLayer):
            shapes, inputs = layer.state_shapes(), layer.input_shapes()
            layer.keep(
                zeros(counts.slots, shapes=shapes),
                zeros(counts.checkpoints, shapes=shapes),
                zeros(counts.slots, counts.drafts, shapes=inputs) if counts.drafts else (),
            )
    return tensors


def _reserved(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate zeros; on the CPU as pages that are only taken as blocks are used."""
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    untouched = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(untouched).view(dtype).view(shape)


def others_bytes(device: Device) -> int:
    """Return the memory of a GPU that other processes have, asked as this one begins to use it; its
    own runtime's is taken to be no more than it ever is."""
    return max(0, device.used_memory_bytes() - _MOST_CONTEXT_BYTES) if device.is_gpu else 0


def overhead_bytes(device: Device, weights_bytes: int, others: int, utilization: float) -> int:
    """Return the bytes in use that are neither weights nor activations: the runtime's, and the part
    of other processes' memory that falls into this engine's share of the device."""
    if device.is_gpu:
        used = device.used_memory_bytes() - torch.cuda.memory_reserved(device.torch_device)
        others = min(others, max(0, used - _MOST_CONTEXT_BYTES))
        own = used - others
        beyond = others - int((1 - utilization) * device.total_memory_bytes())
        return max(0, own) + max(0, beyond)
    resident = psutil.Process().memory_info().rss - weights_bytes
    # The API server shares the container's limit; the floor leaves room for it.
    return max(int(resident), CPU_RUNTIME_BYTES)
