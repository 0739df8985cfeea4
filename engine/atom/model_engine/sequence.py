"""Sequence: one request's life inside the engine core, and its legal state changes.

Torch-free. While a sequence runs, its tokens and counters live in the scheduler's row table (one
numpy row per slot); the Sequence keeps identity, parameters and block tables, and takes its
tokens back when it leaves its slot.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.request import Request
from atom.model_engine.row_columns import NO_SHIFT
from atom.model_engine.sequence_images import SequenceImages
from atom.model_engine.transfer_legs import PrefillLeg
from atom.sampling_params import SamplingParams
from atom.sizing.vision.facts import VisionFacts


class SequenceStatus(enum.Enum):
    WAITING = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()


LEGAL_TRANSITIONS: dict[SequenceStatus, frozenset[SequenceStatus]] = {
    SequenceStatus.WAITING: frozenset({SequenceStatus.RUNNING, SequenceStatus.FINISHED}),
    SequenceStatus.RUNNING: frozenset({SequenceStatus.WAITING, SequenceStatus.FINISHED}),
    SequenceStatus.FINISHED: frozenset(),
}

NO_SLOT = -1


class Sequence:
    """A request's tokens and KV blocks as the scheduler sees them. id, params, lora, images: from
    the request. position_delta: of the images. lora_slot: of the device, of its adapter, while it
    has a slot. num_cached_tokens: prompt tokens the prefix cache spared.

    token_ids: prompt and generated tokens; while the sequence has a slot the row table's row is
    ahead of it. block_tables: of each group of layers, while it has a slot; first_blocks: the index
    in each from which on its blocks are held. chain_hash, num_published: how far they are
    shareable. seed: of its random draws, fixed at first admission. scheduled_time: of that, in the
    clock of arrive_time.
    is_prefill_leg: another engine reads the prompt's pages when it ends.
    num_scored: positions of the prompt whose logits were (or are being) looked at for
    `prompt_logprobs`. tier_reads: how often its prefix was read from another tier of the cache
    since it was last admitted."""

    __slots__ = (
        "_status",
        "arrive_time",
        "block_tables",
        "cache_salt",
        "chain_hash",
        "client_id",
        "first_blocks",
        "id",
        "images",
        "is_prefill_leg",
        "lora",
        "lora_slot",
        "max_total_tokens",
        "num_cached_tokens",
        "num_prompt_tokens",
        "num_published",
        "num_scored",
        "params",
        "position_delta",
        "priority",
        "scheduled_time",
        "seed",
        "slot",
        "tier_reads",
        "token_ids",
    )

    def __init__(self, request: Request, vision: VisionFacts | None = None) -> None:
        """vision: of a model that reads images."""
        self.id = request.id
        self.params: SamplingParams = request.params
        given = [*request.prompt_token_ids, *request.output_token_ids]
        self.token_ids: NDArray[np.int32] = np.asarray(given, dtype=np.int32)
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.max_total_tokens = request.max_total_tokens
        self.arrive_time = request.arrive_time
        self.priority = request.priority
        self.cache_salt = request.cache_salt
        self.client_id = request.client_id
        self.lora = request.lora
        self.is_prefill_leg = isinstance(request.kv_transfer, PrefillLeg)
        self.lora_slot = NO_SLOT
        self.images: SequenceImages | None = None
        if request.images and vision is not None:
            self.images = SequenceImages(request.images, vision)
        self.position_delta = NO_SHIFT if self.images is None else self.images.position_delta
        self.num_cached_tokens = 0
        self.block_tables: tuple[list[int], ...] = ()
        self.first_blocks: list[int] = []
        self.slot = NO_SLOT
        self.seed: int | None = None
        self.scheduled_time: float | None = None
        self.chain_hash = 0
        self.num_published = 0
        self.num_scored = 0
        self.tier_reads = 0
        self._status = SequenceStatus.WAITING

    @property
    def status(self) -> SequenceStatus:
        return self._status

    @status.setter
    def status(self, new: SequenceStatus) -> None:
        if new not in LEGAL_TRANSITIONS[self._status]:
            raise RuntimeError(
                f"sequence {self.id}: {self._status.name} → {new.name} is no legal transition"
            )
        self._status = new

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def prompt_token_ids(self) -> NDArray[np.int32]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def num_blocks(self) -> int:
        """Count the blocks that it holds, of all groups."""
        return sum(map(len, self.block_tables)) - sum(self.first_blocks)

    @property
    def cacheable_token_ids(self) -> NDArray[np.int32]:
        """Return the tokens that the prefix cache may supply. Cached tokens have no logits, so this
        is empty while prompt tokens remain to be scored."""
        return self.token_ids[: 0 if self.num_unscored else None]

    def named(self, tokens: NDArray[np.int32], first: int, size: int) -> NDArray[np.int32]:
        """Return the names of its blocks of `size` tokens, from position `first` on: `tokens`, but
        in blocks with an image."""
        return tokens if self.images is None else self.images.named(tokens, first, size)

    @property
    def num_unscored(self) -> int:
        """Return how many prompt positions `prompt_logprobs` has still to score: the last one
        scores the answer."""
        if self.params.prompt_logprobs is None:
            return 0
        return self.num_prompt_tokens - 1 - self.num_scored
