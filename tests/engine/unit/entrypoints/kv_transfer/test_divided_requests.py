"""When a server with workers lets one of them compute the prompt of another's answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest

from atom.entrypoints.handover.divided_requests import PrefillWorkers, RolePlaces, SentPrompts
from atom.entrypoints.handover.http_replicas import HttpReplicas
from atom.entrypoints.handover.places import FoundPlaces, Place
from atom.entrypoints.handover.replica_session import ReplicaSessions
from atom.errors import RequestError
from atom.model_engine.front.handover.handed_request import ANY_WEIGHTS, HandedRequest
from atom.model_engine.front.handover.relays import ReplicaLostError, TakenRequest
from atom.model_engine.request import FinishReason, LoRARequest, Request, RequestOutput
from atom.model_engine.request_image import RequestImage
from atom.model_engine.transfer_legs import DecodeLeg, PrefillLeg, TicketNote
from tests.support.engine_core.builders_engine import make_request
from tests.support.waiting import within

_PLACES = {name: Place(f"http://{name}") for name in ("prefill", "decode", "whole", "both")}
_NOTE = TicketNote("engine", "10.0.0.7", 5600, "a" * 32, "b" * 32, 640, [[1]])


def places(**roles: str) -> tuple[RolePlaces, RolePlaces]:
    """Of the workers that answer, and of those that compute prompts."""
    found = FoundPlaces([])
    found.found = [_PLACES[name] for name in roles]
    found.note_serving(found.found)
    pair = RolePlaces(found, producers=False), RolePlaces(found, producers=True)
    for each in pair:
        each.roles = {_PLACES[name]: role for name, role in roles.items()}
    return pair


class Producers:
    """Answers prefill legs; asked: those that came; first: the worker that was to take each."""

    def __init__(self, outcome: TicketNote | Exception) -> None:
        self.outcome = outcome
        self.asked: list[Request] = []
        self.first: list[Place | None] = []
        self.open_at = dict.fromkeys(_PLACES.values(), 0)

    @contextlib.asynccontextmanager
    async def ask(
        self, handed: HandedRequest, first: Place | None = None
    ) -> AsyncIterator[TakenRequest]:
        self.asked.append(handed.request)
        self.first.append(first)
        if isinstance(self.outcome, RequestError):
            raise self.outcome
        yield TakenRequest(self._outputs(), "")

    async def _outputs(self) -> AsyncIterator[RequestOutput]:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        yield RequestOutput(
            "r", [7], "", True, FinishReason.LENGTH, "max_tokens", 9, 1, 0, ticket=self.outcome
        )


def leg_for(
    request: Request, outcome: TicketNote | Exception = _NOTE, **roles: str
) -> tuple[DecodeLeg | None, list[Request]]:
    answering, producing = places(**(roles or {"prefill": "kv_producer", "decode": "kv_consumer"}))
    producers = Producers(outcome)
    workers = PrefillWorkers(cast(HttpReplicas, producers), producing, 512)
    place = next(iter(answering.in_order(dict.fromkeys(_PLACES.values(), 0))))
    handed = HandedRequest(request, "name", ANY_WEIGHTS)
    return asyncio.run(workers.leg_for(handed, place, answering)), producers.asked


_LONG = [token % 90 for token in range(700)]


def test_a_long_prompt_is_computed_elsewhere() -> None:
    request = make_request(1, _LONG, max_tokens=50, min_tokens=9)
    leg, (asked,) = leg_for(request)
    assert leg == DecodeLeg("10.0.0.7", 5600, "engine", "b" * 32, "a" * 32, 640)
    assert isinstance(asked.kv_transfer, PrefillLeg)
    assert (asked.max_total_tokens, asked.params.max_tokens, asked.params.min_tokens) == (701, 1, 0)
    assert asked.prompt_token_ids == _LONG


@pytest.mark.parametrize(
    "changed",
    [
        {"prompt_token_ids": _LONG[:511]},
        {"output_token_ids": [5]},
        {"num_losses": 1},
        {"kv_transfer": PrefillLeg()},
    ],
)
def test_a_request_that_gains_nothing_is_sent_whole(changed: dict[str, Any]) -> None:
    request = msgspec.structs.replace(make_request(1, _LONG), **changed)
    assert leg_for(request) == (None, [])


def test_prompts_of_adapters_are_divided_and_remembered_apart() -> None:
    sent, place = SentPrompts(), _PLACES["decode"]
    alone = make_request(1, _LONG)
    adapted = [msgspec.structs.replace(alone, lora=LoRARequest(name, 1)) for name in "ab"]
    assert leg_for(adapted[0])[0] is not None
    for request in (alone, *adapted):
        assert sent.note(place, request) == len(_LONG)
        assert sent.note(place, request) < 64


@pytest.mark.parametrize(
    "roles",
    [
        {"decode": "kv_consumer"},
        {"prefill": "kv_producer", "whole": ""},
        {"prefill": "kv_producer"},
        {"both": "kv_both"},
    ],
)
def test_workers_without_the_roles_are_sent_whole_requests(roles: dict[str, str]) -> None:
    assert leg_for(make_request(1, _LONG), **roles) == (None, [])


@pytest.mark.parametrize(
    "outcome",
    [
        RequestError("its tickets take too much", status=503),
        ReplicaLostError("killed"),
        msgspec.structs.replace(_NOTE, ticket="", block_ids=[]),
    ],
)
def test_a_failed_prefill_leg_costs_nothing(outcome: TicketNote | Exception) -> None:
    leg, asked = leg_for(make_request(1, _LONG), outcome)
    assert leg is None
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("prefill", "both", "decode", "chosen"),
    [
        ("a", "b", "a", "prefill"),
        ("a", "b", "b", "both"),
        ("", "b", "a", "prefill"),
        ("a", "b", "", None),
        ("a", "b", "c", None),
    ],
    ids=["one", "the other", "untold", "of an unknown layout", "none"],
)
def test_a_prompt_is_computed_by_a_worker_of_the_same_cache_layout(
    prefill: str, both: str, decode: str, chosen: str | None
) -> None:
    """During a rollout of both roles, pods of two revisions serve."""
    answering, producing = places(prefill="kv_producer", both="kv_producer", decode="kv_consumer")
    layouts = {"prefill": prefill * 32, "both": both * 32, "decode": decode * 32}
    for each in (answering, producing):
        each.layouts = {_PLACES[name]: layout for name, layout in layouts.items()}
    note = msgspec.structs.replace(_NOTE, layout=(decode or "a") * 32)
    producers = Producers(note)
    workers = PrefillWorkers(cast(HttpReplicas, producers), producing, 512)
    handed = HandedRequest(make_request(1, _LONG), "name", ANY_WEIGHTS)
    leg = asyncio.run(workers.leg_for(handed, _PLACES["decode"], answering))
    if decode == "":
        assert leg is not None, "a worker that tells no layout takes any pages, or computes"
    elif chosen is None:
        assert (leg, producers.asked) == (None, [])
    else:
        assert leg is not None
        assert producers.first == [_PLACES[chosen]]


def test_pages_of_another_layout_than_asked_for_are_not_read() -> None:
    answering, producing = places(prefill="kv_producer", decode="kv_consumer")
    for each in (answering, producing):
        each.layouts = {_PLACES["prefill"]: "", _PLACES["decode"]: "c" * 32}
    producers = Producers(_NOTE)
    workers = PrefillWorkers(cast(HttpReplicas, producers), producing, 512)
    handed = HandedRequest(make_request(1, _LONG), "name", ANY_WEIGHTS)
    assert asyncio.run(workers.leg_for(handed, _PLACES["decode"], answering)) is None
    assert len(producers.asked) == 1


def test_a_prompt_is_remembered_by_the_worker_that_it_was_sent_to() -> None:
    sent, request = SentPrompts(), make_request(1, _LONG)
    one, other = _PLACES["decode"], _PLACES["both"]
    assert sent.note(one, request) == 700
    assert sent.note(one, request) == 700 - 640
    assert sent.note(other, request) == 700
    longer = make_request(2, [*_LONG[:300], *range(400)])
    assert sent.note(one, longer) == 700 - 256
    salted = make_request(3, _LONG, cache_salt="tenant")
    assert sent.note(one, salted) == 700


def test_another_picture_is_another_prompt_from_there_on() -> None:
    """Tokens of images are equal for every picture."""
    sent, place = SentPrompts(), _PLACES["decode"]

    def seeing(number: int, digest: bytes) -> Request:
        image = RequestImage(digest, 300, bytes([1] * 64), (1, 8, 8), (1,), memoryview(bytes(4)))
        return msgspec.structs.replace(make_request(number, _LONG), images=[image])

    assert sent.note(place, seeing(1, b"one")) == 700
    assert sent.note(place, seeing(2, b"one")) == 700 - 640
    assert sent.note(place, seeing(3, b"other")) == 700 - 256


def test_producers_answer_only_where_nothing_else_does() -> None:
    answering, producing = places(prefill="kv_producer", decode="kv_consumer", whole="")
    none_open = dict.fromkeys(_PLACES.values(), 0)
    assert set(answering.in_order(none_open)) == {_PLACES["decode"], _PLACES["whole"]}
    assert list(producing.in_order(none_open)) == [_PLACES["prefill"]]
    alone, _ = places(prefill="kv_producer")
    assert list(alone.in_order(none_open)) == [_PLACES["prefill"]]


def test_a_request_ends_if_its_last_place_is_forgotten_meanwhile() -> None:
    """Workers are looked for again while one is asked, and may be gone then."""
    found = FoundPlaces([])
    sessions = ReplicaSessions(lambda: ())
    replicas = HttpReplicas(found, sessions)

    async def ask() -> None:
        async with replicas.ask(HandedRequest(make_request(1, _LONG), "name", ANY_WEIGHTS)):
            raise AssertionError("there is none")

    with pytest.raises(RequestError, match="no address is known"):
        asyncio.run(within(ask(), "the request ends"))
