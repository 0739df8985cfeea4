"""DecodeGraphs: one captured graph per batch size replays a whole decode step.

A replay appends blocks, builds the inputs from the slots, runs the layers, samples and advances the
slots; the host only says which slots run and which blocks were appended. Sizes are buckets: a batch
runs in the smallest that holds it, padded with rows that compute nothing of consequence. Captured
at start, largest first, sharing one memory pool. Identical tokens with graphs off is a test.

A batch with top-k or top-p rows is not for a graph: their filter sorts on the host's say-so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.input_batch import SlotState
from atom.model_ops.backends.interface import DecodeInputs, Ops, SamplingTensors
from atom.models.decoder import CausalLM
from atom.utils.forward_context import AttentionMetaData, ForwardContext, set_forward_context

# Steps whose staged inputs may not have been read yet: the one that runs and the one behind it.
_STAGES = 3


def bucket_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, 8, then every 16 to `max_num_seqs` (itself included), ascending."""
    sizes = [size for size in (1, 2, 4, 8) if size <= max_num_seqs]
    sizes += range(16, max_num_seqs + 1, 16)
    return sizes if sizes[-1] == max_num_seqs else [*sizes, max_num_seqs]


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    token_ids: torch.Tensor  # [bucket] int64, where a replay leaves the sampled tokens


@dataclass(frozen=True, slots=True)
class _StepBuffers:
    """What the host says to a replay: slots [num_slots] of its rows; appends [3, num_slots] of
    (slot, index, block id). Int64; unused entries name the padding slot."""

    slots: torch.Tensor
    appends: torch.Tensor

    @staticmethod
    def padded(num_slots: int, padding_slot: int, device: torch.device) -> _StepBuffers:
        slots = torch.full((num_slots,), padding_slot, dtype=torch.int64, device=device)
        appends = torch.zeros((3, num_slots), dtype=torch.int64, device=device)
        appends[0] = padding_slot
        return _StepBuffers(slots, appends)

    def pinned(self) -> _StepBuffers:
        return _StepBuffers(self.slots.cpu().pin_memory(), self.appends.cpu().pin_memory())


class DecodeGraphs:
    def __init__(
        self, model: CausalLM, ops: Ops, state: SlotState, block_size: int, max_model_len: int
    ) -> None:
        self._model = model
        self._ops = ops
        self._state = state
        self._block_size = block_size
        self._max_model_len = max_model_len
        num_slots = state.padding_slot
        self._sizes = bucket_sizes(num_slots)
        self._graphs: dict[int, _Graph] = {}
        self._inputs = _StepBuffers.padded(num_slots, num_slots, state.last_token.device)
        # Pinned once, used in turn: a copy may still be waiting for the device when the next
        # step is staged.
        self._stages = [self._inputs.pinned() for _ in range(_STAGES)]
        self._step = 0
        self._pool: Any = None  # torch's handle of the pool that all graphs share

    def capture(self, progress: Callable[[float], None]) -> None:
        """Capture every bucket, largest first; real slots and their cache stay as they are."""
        for done, size in enumerate(reversed(self._sizes)):
            progress(done / len(self._sizes))
            self._graphs[size] = self._capture(size)

    def replay(self, batch: ScheduledBatch) -> torch.Tensor:
        """Run a batch of decodes: [rows] int64 sampled tokens, on the device until the next."""
        rows = len(batch.slots)
        size = next(size for size in self._sizes if size >= rows)
        self._stage(batch, size)
        graph = self._graphs[size]
        graph.graph.replay()
        return graph.token_ids[:rows]

    def _stage(self, batch: ScheduledBatch, size: int) -> None:
        """Send the step's slots and appended blocks, through pinned memory, without waiting."""
        stage = self._stages[self._step % _STAGES]
        self._step += 1
        padding = self._state.padding_slot
        rows, appended = len(batch.slots), len(batch.block_appends)
        slots, appends = stage.slots.numpy(), stage.appends.numpy()
        slots[:rows] = batch.slots
        slots[rows:size] = padding
        self._inputs.slots[:size].copy_(stage.slots[:size], non_blocking=True)
        appends[:, :appended] = batch.block_appends.T
        appends[0, appended:] = padding
        self._inputs.appends.copy_(stage.appends, non_blocking=True)

    def _capture(self, size: int) -> _Graph:
        # Once outside the graph: kernels compile and libraries allocate their workspaces.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._decode(size)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            token_ids = self._decode(size)
        self._pool = self._pool or graph.pool()
        return _Graph(graph, token_ids)

    def _decode(self, size: int) -> torch.Tensor:
        """The step that a graph replays, from the slots to the slots."""
        slots, state = self._inputs.slots[:size], self._state.decode_tensors()
        step = self._ops.prepare_decode(slots, self._inputs.appends, state, self._block_size)
        metadata = AttentionMetaData(
            query_starts=torch.arange(size + 1, dtype=torch.int32, device=slots.device),
            context_lens=step.context_lens,
            block_tables=step.block_tables,
            slot_mapping=step.slot_mapping,
            num_decodes=size,
            max_query_len=1,
            max_context_len=self._max_model_len,
        )
        with set_forward_context(ForwardContext(attn_metadata=metadata)):
            hidden = self._model(step.input_ids, step.positions)
        logits = self._model.compute_logits(hidden)
        token_ids = self._ops.sample(logits, _sampling(step))
        self._ops.commit_tokens(slots, token_ids, state)
        return token_ids


def _sampling(step: DecodeInputs) -> SamplingTensors:
    """A graph serves greedy and drawn rows alike; top-k and top-p rows never come here."""
    return SamplingTensors(
        temperature=step.temperature,
        top_k=step.seed,  # not looked at without any_top_k and any_top_p
        top_p=step.temperature,
        seed=step.seed,
        position=step.sample_positions,
        all_greedy=False,
        any_top_k=False,
        any_top_p=False,
    )
