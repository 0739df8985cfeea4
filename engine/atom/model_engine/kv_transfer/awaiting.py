"""Awaiting: a request that waits for its pages, and Joining: one that waits no longer."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.block_manager import BlockManager, PrefixMatch
from atom.model_engine.kv_transfer.channel_events import Place
from atom.model_engine.kv_transfer.pulling.pull_plan import PullPlan
from atom.model_engine.kv_transfer.pulls import Pull
from atom.model_engine.request import Request
from atom.model_engine.sequence_images import SequenceImages
from atom.model_engine.transfer_legs import DecodeLeg, TransferOutcome
from atom.model_engine.wire.engine_protocol import FinishedRow
from atom.sizing.vision.facts import VisionFacts

_MOST_SPENT = 4096


@dataclass(slots=True)
class Awaiting:
    """A request, and the blocks that its pages go to. tokens: the names (Sequence.named) of the
    prompt's whole blocks that the ticket may have, and one more, since a prefix never matches all
    tokens; shared: of each group, the blocks of the cached prefix that are referenced; blocks: of
    each group, from the plan's first index on; state: the checkpoint that the page of states goes
    to; places: group and index of each page."""

    request: Request
    leg: DecodeLeg
    tokens: NDArray[np.int32]
    pull: Pull
    images: SequenceImages | None = None
    match: PrefixMatch | None = None
    plan: PullPlan | None = None
    shared: list[list[int]] = field(default_factory=list)
    blocks: list[list[int]] = field(default_factory=list)
    state: int | None = None
    places: list[tuple[int, int]] = field(default_factory=list)

    @property
    def place(self) -> Place:
        return Place(self.leg.host, self.leg.port)

    def match_in(self, blocks: BlockManager) -> PrefixMatch:
        """Find the cached prefix of the prompt."""
        return blocks.match_prefix(self.tokens, self.request.cache_salt, self.request.lora)

    @property
    def whole_tokens(self) -> NDArray[np.int32]:
        """Return the tokens of whole blocks."""
        return self.tokens[:-1]


class SpentTickets:
    """The newest tickets that were asked for here."""

    def __init__(self) -> None:
        self._tickets: dict[str, None] = {}  # the oldest first

    def add(self, ticket: str) -> None:
        self._tickets[ticket] = None
        if len(self._tickets) > _MOST_SPENT:
            del self._tickets[next(iter(self._tickets))]

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._tickets


@dataclass(frozen=True, slots=True)
class Joining:
    """A request that waits no longer. ended: set if it ends instead of being scheduled."""

    request: Request
    outcome: TransferOutcome
    ended: FinishedRow | None = None


def images_of(request: Request, vision: VisionFacts | None) -> SequenceImages | None:
    """Return the images of a request, or None. vision: of a model that reads images."""
    if not request.images or vision is None:
        return None
    return SequenceImages(request.images, vision)


def names_of(request: Request, images: SequenceImages | None, size: int) -> NDArray[np.int32]:
    """Return the names of the blocks of all tokens that a request was given; a block has `size` of
    them."""
    tokens = np.asarray([*request.prompt_token_ids, *request.output_token_ids], dtype=np.int32)
    return tokens if images is None else images.named(tokens, 0, size)


def describe_images(blocks: BlockManager, awaiting: Awaiting, first: int) -> None:
    """Describe the blocks with images to readers of events, from the token `first` on."""
    assert awaiting.images is not None, "there are images"
    named = awaiting.whole_tokens[first:]
    given = np.asarray(awaiting.request.prompt_token_ids, dtype=np.int32)
    size = blocks.block_size
    keys = awaiting.images.extra_keys(first, len(named) // size, size)
    blocks.describe_images(named, given[first : first + len(named)], keys)


def keep_state(blocks: BlockManager, awaiting: Awaiting) -> int | None:
    """Make the states at the prefix's end findable if all pages came, else free their place.
    Returns the checkpoint, pinned."""
    state, awaiting.state = awaiting.state, None
    checkpoints, match, size = blocks.checkpoints, awaiting.match, blocks.block_size
    if state is None or checkpoints is None or match is None:
        return None
    if len(awaiting.pull.came) < awaiting.pull.num_pages:
        checkpoints.give_back(state)
        return None
    tokens = awaiting.whole_tokens
    chain = blocks.chain(tokens[match.num_blocks * size : -size], match.last_hash)
    between = len(tokens) // size % checkpoints.interval_blocks != 0
    block = blocks.keep_checkpoint(tokens[-size:], chain, state, between=between)
    return None if block is None else checkpoints.pin(block)
