"""Divided requests: prompts that one worker computes and another answers.

A server without an engine sends the prefill leg to a worker with the role kv_producer, and the
request with the ticket of its pages to a worker that answers. It divides a request only if the
worker that would answer has probably not cached most of its prompt, by its memory of the prompts
that it has sent there. A prefill leg that fails costs its time alone: the request is then sent
whole.
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import xxhash

from atom.entrypoints.handover.http_replicas import HttpReplicas
from atom.entrypoints.handover.places import FoundPlaces, Place
from atom.entrypoints.kv_transfer.leg_plan import params_of_leg
from atom.errors import RequestError
from atom.kv_transfer_config.values import KVRole
from atom.model_engine.front.handover.handed_request import ANY_WEIGHTS, HandedRequest
from atom.model_engine.front.handover.relays import ReplicaLostError
from atom.model_engine.request import Request
from atom.model_engine.transfer_legs import DecodeLeg, PrefillLeg

logger = logging.getLogger(__name__)

_CHUNK_TOKENS = 64
_MOST_CHUNKS = 200_000  # remembered; more than the caches of many workers hold


class SentPrompts:
    """Remember the beginnings of prompts by the worker that they were sent to."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[tuple[Place, int], None] = OrderedDict()

    def note(self, place: Place, request: Request) -> int:
        """Remember a prompt, evicting the oldest ones if there are too many. Return how many of its
        tokens the worker had not been sent before, in this order."""
        chunks = _chunks(request)
        known = ((place, chunk) in self._chunks for chunk in chunks)
        seen = sum(1 for _ in itertools.takewhile(bool, known)) * _CHUNK_TOKENS
        for chunk in chunks:
            self._chunks[place, chunk] = None
            self._chunks.move_to_end((place, chunk))
        while len(self._chunks) > _MOST_CHUNKS:
            self._chunks.popitem(last=False)
        return len(request.prompt_token_ids) - seen


def _chunks(request: Request) -> list[int]:
    """Return the hash of the prompt, with its images and its adapter, up to the end of each whole
    chunk."""
    tokens = np.asarray(request.prompt_token_ids, dtype=np.int32)
    adapter = "" if request.lora is None else request.lora.lora_name
    digest = xxhash.xxh64(f"{adapter}|{request.cache_salt}".encode())
    hashes = []
    for first in range(0, len(tokens) // _CHUNK_TOKENS * _CHUNK_TOKENS, _CHUNK_TOKENS):
        digest.update(tokens[first : first + _CHUNK_TOKENS].tobytes())
        for image in request.images:
            if first <= image.offset < first + _CHUNK_TOKENS:
                digest.update(image.digest)
        hashes.append(digest.intdigest())
    return hashes


class RolePlaces:
    """The workers of a role, as Places. Workers without a role answer whole requests."""

    def __init__(self, found: FoundPlaces, *, producers: bool) -> None:
        self._found = found
        self._producers = producers
        self.roles: dict[Place, str] = {}
        self.layouts: dict[Place, str] = {}  # of their KV caches; empty of one that tells none

    def in_order(self, open_at: Mapping[Place, int]) -> Sequence[Place]:
        """List the places of the role, serving ones first. Workers that only compute prompts answer
        as well if no other worker is known."""
        places = self._found.in_order(open_at)
        chosen = [each for each in places if self._is_producer(each) is self._producers]
        return chosen if chosen or self._producers else places

    def consumes(self, place: Place) -> bool:
        """Return whether a worker reads pages of others."""
        return self.roles.get(place) in (KVRole.CONSUMER, KVRole.BOTH)

    def of_layout(self, layout: str, open_at: Mapping[Place, int]) -> Sequence[Place]:
        """List the places whose pages an engine of this cache layout can read, as far as it is
        known."""
        return [each for each in self.in_order(open_at) if self._fits(each, layout)]

    def _fits(self, place: Place, layout: str) -> bool:
        own = self.layouts.get(place, "")
        return not own or not layout or own == layout

    def _is_producer(self, place: Place) -> bool:
        return self.roles.get(place) == KVRole.PRODUCER


class PrefillWorkers:
    """Compute prompts at workers that do nothing else, if that is worth it."""

    def __init__(self, prefill: HttpReplicas, producers: RolePlaces, least_tokens: int) -> None:
        """least_tokens: that the answering worker has not been sent, for a request to be
        divided."""
        self._prefill = prefill
        self._producers = producers
        self._least_tokens = least_tokens
        self._sent = SentPrompts()

    async def leg_for(
        self, handed: HandedRequest, place: Place, answering: RolePlaces
    ) -> DecodeLeg | None:
        """Return the leg that a request continues with at a worker, after another one has computed
        its prompt; None if it is sent whole."""
        request = handed.request
        unseen = self._sent.note(place, request)
        divides = answering.consumes(place) and _is_dividable(request)
        if not divides or unseen < self._least_tokens:
            return None
        layout = answering.layouts.get(place, "")
        producers = self._producers.of_layout(layout, self._prefill.open_at)
        if not producers:
            return None
        try:
            leg = await self._compute(handed, producers[0])
            # Another producer may have taken it, after a rollout changed the first one.
            return leg if leg is None or not layout or leg.layout == layout else None
        except (RequestError, ReplicaLostError) as error:
            logger.warning("a prompt is computed where it is answered: %s", error)
            return None

    async def _compute(self, handed: HandedRequest, first: Place) -> DecodeLeg | None:
        """Let a worker compute the prompt, `first` if it can; returns the leg that reads its pages,
        None if it kept none."""
        request, leg = handed.request, PrefillLeg()
        asked = msgspec.structs.replace(
            request,
            kv_transfer=leg,
            params=params_of_leg(request.params, leg),
            max_total_tokens=len(request.prompt_token_ids) + 1,
        )
        prefill = HandedRequest(asked, handed.name, ANY_WEIGHTS)
        async with self._prefill.ask(prefill, first) as taken:
            async for output in taken.outputs:
                note = output.ticket
                if not output.finished:
                    continue
                if note is None or not note.ticket:
                    return None
                return DecodeLeg(
                    note.host, note.port, note.engine_id, note.ticket, note.layout, note.num_tokens
                )
        return None


def _is_dividable(request: Request) -> bool:
    begun = request.output_token_ids or request.num_losses
    scored = request.params.prompt_logprobs is not None
    return not (begun or scored or request.kv_transfer is not None)
