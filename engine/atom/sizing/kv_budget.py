"""The KV cache budget of one device: its blocks, and how many sequences they hold.

The result is a value; the configuration is not changed. Layers with a sliding window take their
blocks from the same pool as the others. The layers' states are allocated before the blocks.
Checkpoints, copies of some states, are kept beside the blocks, since a cached prefix can only
continue from a checkpoint.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Literal

from atom.sizing.errors import DoesNotFitError, DoesNotFitReason
from atom.sizing.kv_layout import KvLayout
from atom.sizing.limits import DeviceMemory, RunLimits

_MIB = 1024**2
# Checkpoints take at most a fifth of the memory that is left for the cache.
_LEAST_PARTS = 5
# One checkpoint takes at most as much as the keys and values of so many intervals: less than an
# interval is recomputed, and most prefixes keep few of their checkpoints.
_INTERVALS = 4
# States of running sequences take at most half of the memory that weights and activations leave:
# on average a sequence's keys and values then have as much memory as its states.
_STATES_PARTS = 2
_TABLE_START_TOKENS = 1024
_SMALL_TABLE_START_TOKENS = 128


@dataclass(frozen=True, slots=True)
class KvBudget:
    """Blocks of the KV cache of one device, for all groups of layers together.

    `available_bytes`: memory left for the cache. `limited_by`: whether that memory decided the
    number of blocks, or `max_num_seqs` full sequences need no more, or the user chose the number.
    `tokens`: of sequences of the full length that fill the blocks; `num_checkpoints`: of states,
    besides the blocks.
    """

    num_blocks: int
    block_size: int  # tokens per block
    block_bytes: int
    limited_by: Literal["memory", "max_num_seqs", "num_kv_blocks"]
    available_bytes: int
    tokens: int
    layout: KvLayout
    num_checkpoints: int = 0

    @property
    def checkpoint_bytes(self) -> int:
        """Return the bytes of the states' checkpoints."""
        return self.num_checkpoints * self.layout.state_bytes

    def sequences(self, tokens: int) -> int:
        """Return how many sequences of `tokens` fit at the same time."""
        return self.num_blocks // self.layout.blocks_of_sequence(tokens, self.block_size)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The number of sequences of `context_tokens` that run at the same time."""

    context_tokens: int
    sequences: int


def plan_kv_cache(memory: DeviceMemory, layout: KvLayout, limits: RunLimits) -> KvBudget:
    """Compute the blocks that fit into a device's usable memory beside its other uses.

    Never more than `max_num_seqs` sequences of `max_model_len` and a step beside them can use.
    Raises DoesNotFitError if no memory is left beside the weights, or not enough for one sequence
    of `max_model_len`.
    """
    block_size, longest = limits.block_size, limits.max_model_len
    block_bytes = block_size * layout.bytes_per_token
    memory = beside_states(memory, layout, limits)
    available_bytes = memory.available_bytes
    if available_bytes < block_bytes:
        raise _no_block_fits(memory, block_bytes)
    if available_bytes < layout.sequence_bytes(longest, block_size):
        raise _no_sequence_fits(memory, layout, limits)
    checkpoints = checkpoints_that_fit(available_bytes, layout, limits)
    available_bytes -= checkpoints * layout.state_bytes
    fitting_blocks = available_bytes // block_bytes
    needed_blocks = limits.max_num_seqs * layout.blocks_of_sequence(longest, block_size)
    useful_blocks = needed_blocks + layout.step_blocks(limits.max_num_batched_tokens, block_size)
    filled_blocks = min(fitting_blocks, needed_blocks)
    return KvBudget(
        num_blocks=min(fitting_blocks, useful_blocks),
        block_size=block_size,
        block_bytes=block_bytes,
        limited_by="memory" if fitting_blocks <= useful_blocks else "max_num_seqs",
        available_bytes=available_bytes,
        tokens=filling_tokens(layout, filled_blocks, block_size, longest),
        layout=layout,
        num_checkpoints=checkpoints,
    )


def running_sequences(memory: DeviceMemory, layout: KvLayout, limits: RunLimits) -> int:
    """Return how many sequences run at the same time: as many as were asked for, but where layers
    keep states no more than leave half of the memory to blocks; one at least.

    For the planner of `plan_kv_cache`, which takes limits as they are."""
    if not layout.state_bytes:
        return limits.max_num_seqs
    states = memory.available_bytes // _STATES_PARTS // layout.running_state_bytes
    return max(1, min(limits.max_num_seqs, states - 1))  # one is the slot that none has


def checkpoint_tokens(layout: KvLayout, block_size: int) -> int:
    """Return the tokens between two checkpoints, in whole blocks; 0 if there are no states. If
    every group has a window, a token counts in all of them. A window of one token keeps no block at
    the end of a prefix, which would find its checkpoint."""
    if not layout.state_bytes or any(group.window == 1 for group in layout.groups):
        return 0
    kept_bytes = layout.growing_bytes_per_token or layout.bytes_per_token * len(layout.groups)
    tokens = -(-layout.state_bytes // (_INTERVALS * kept_bytes))
    return -(-tokens // block_size) * block_size


def checkpoints_that_fit(available_bytes: int, layout: KvLayout, limits: RunLimits) -> int:
    """Return how many checkpoints fit into the memory left for the cache, beside at least one
    sequence of the full length; 0 without prefix caching."""
    interval = checkpoint_tokens(layout, limits.block_size)
    if not interval or not limits.prefix_caching:
        return 0
    beside = available_bytes - layout.sequence_bytes(limits.max_model_len, limits.block_size)
    fitting = min(available_bytes // _LEAST_PARTS, beside) // layout.state_bytes
    useful = limits.max_num_seqs * (limits.max_model_len // interval)
    return max(0, min(fitting, useful))


def beside_states(memory: DeviceMemory, layout: KvLayout, limits: RunLimits) -> DeviceMemory:
    """Return the memory less the states of all sequences that may run."""
    return replace(memory, state_bytes=layout.running_states_bytes(limits.max_num_seqs))


def fewer_blocks(budget: KvBudget, num_blocks: int, max_model_len: int) -> KvBudget:
    """Return the budget with `num_blocks` at most: the number that fits on the smallest rank."""
    if num_blocks >= budget.num_blocks:
        return budget
    layout, block_size = budget.layout, budget.block_size
    tokens = min(budget.tokens, filling_tokens(layout, num_blocks, block_size, max_model_len))
    return replace(budget, num_blocks=num_blocks, tokens=tokens, limited_by="memory")


def filling_tokens(layout: KvLayout, num_blocks: int, block_size: int, max_model_len: int) -> int:
    """Return the tokens of sequences of `max_model_len` that fill the blocks, the last one perhaps
    shorter.

    If every layer has a window, count only the tokens that are kept.
    """
    sequence_blocks = layout.blocks_of_sequence(max_model_len, block_size)
    kept_blocks = layout.table_blocks(max_model_len, block_size)
    whole, rest = divmod(num_blocks, sequence_blocks)
    begun = layout.longest_blocks(rest, block_size, -(-max_model_len // block_size))
    return (whole * kept_blocks + min(begun, kept_blocks)) * block_size


def concurrency_table(budget: KvBudget, limits: RunLimits) -> tuple[Concurrency, ...]:
    """Return the sequences that fit at powers of two from 1024 tokens (128 if short) to the
    maximum, each with room for its drafts, which never exceed the maximum."""
    longest = limits.max_model_len
    context = _TABLE_START_TOKENS if longest >= _TABLE_START_TOKENS else _SMALL_TABLE_START_TOKENS
    lengths: list[int] = []
    while context < longest:
        lengths.append(context)
        context *= 2
    lengths.append(longest)
    held = [min(length + limits.num_speculative_tokens, longest) for length in lengths]
    return tuple(
        Concurrency(length, min(limits.max_num_seqs, budget.sequences(tokens)))
        for length, tokens in zip(lengths, held, strict=True)
    )


def _no_block_fits(memory: DeviceMemory, block_bytes: int) -> DoesNotFitError:
    needed_bytes = memory.used_bytes + block_bytes
    return DoesNotFitError(
        f"the weights ({_size(memory.weights_bytes)}), activations "
        f"({_size(memory.activation_bytes)}), runtime ({_size(memory.overhead_bytes)})"
        f"{_states(memory)} and one KV block need {_size(needed_bytes)}, but only "
        f"{_size(memory.usable_bytes)} of the device's {_size(memory.total_bytes)} may be used "
        f"(memory utilization {memory.utilization:g}); use "
        "a device with more memory, a higher utilization, a smaller model, or fewer "
        f"{'sequences or ' if memory.state_bytes else ''}tokens per step",
        reason=DoesNotFitReason.WEIGHTS,
        needed_bytes=needed_bytes,
        available_bytes=memory.usable_bytes,
    )


def _no_sequence_fits(memory: DeviceMemory, layout: KvLayout, limits: RunLimits) -> DoesNotFitError:
    block_size, asked = limits.block_size, limits.max_model_len
    needed_bytes = layout.sequence_bytes(asked, block_size)
    available_bytes = memory.available_bytes
    lengths = range(0, asked, block_size)

    def lacks_room(length: int) -> bool:
        tables_bytes = (asked - length) * memory.position_bytes  # that a shorter one does without
        return layout.sequence_bytes(length, block_size) > available_bytes + tables_bytes

    longest = lengths[max(0, bisect_left(lengths, True, key=lacks_room) - 1)]
    return DoesNotFitError(
        f"one sequence of {asked} tokens needs {_size(needed_bytes)} of KV cache, but "
        f"{_size(available_bytes)} are left beside weights ({_size(memory.weights_bytes)}), "
        f"activations ({_size(memory.activation_bytes)}){_states(memory)} and runtime "
        f"({_size(memory.overhead_bytes)}); "
        f"a maximum model length of at most {longest} tokens fits",
        reason=DoesNotFitReason.CONTEXT,
        needed_bytes=needed_bytes,
        available_bytes=available_bytes,
        max_context_tokens=longest,
    )


def _states(memory: DeviceMemory) -> str:
    if not memory.state_bytes:
        return ""
    return f", states of all sequences that may run ({_size(memory.state_bytes)})"


def _size(size_bytes: int) -> str:
    """Write a size in GiB from one GiB on, else in MiB, so that a message has few different
    units."""
    if size_bytes >= 1024 * _MIB:
        return f"{size_bytes / (1024 * _MIB):,.1f} GiB"
    return f"{size_bytes / _MIB:,.0f} MiB"
