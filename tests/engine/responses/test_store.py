"""Responses that are kept: read again, gone on with, bounded by bytes, and refused where off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atom.entrypoints import api_server
from atom.entrypoints.responses import store as responses_store
from atom.entrypoints.responses.store import (
    ResponseStore,
    StoredResponse,
    owner_of,
    size_bytes_of,
)
from atom.errors import RequestError
from tests.support.server.scripted_model import ScriptedRig, in_turn, scripted

PATH = "/v1/responses"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ScriptedRig]:
    async with scripted(tmp_path, in_turn("One.", "Two.", "Three.")) as rig:
        yield rig


async def created(rig: ScriptedRig, text: str, **fields: Any) -> dict[str, Any]:
    response = await rig.post(PATH, input=text, **fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_a_conversation_goes_on_from_what_is_stored(rig: ScriptedRig) -> None:
    async with rig.openai_client() as client:
        first = await client.responses.create(model="tiny", input="A?", instructions="Be short.")
        async with client.responses.stream(
            model="tiny", input="B?", previous_response_id=first.id
        ) as stream:
            second = await stream.get_final_response()
        await client.responses.create(model="tiny", input="C?", previous_response_id=second.id)
        read = await client.responses.retrieve(second.id)
        listed = await client.responses.input_items.list(second.id)
    last = rig.core.prompts[-1]
    places = [last.index(text) for text in ("A?", "One.", "B?", "Two.", "C?")]
    assert places == sorted(places)
    assert "Be short." not in last  # instructions are of one response, as OpenAI has it
    assert (read.id, read.output_text) == (second.id, "Two.")
    (item,) = listed.data
    assert item.content[0].text == "B?"  # type: ignore[union-attr, index]


async def test_an_item_that_is_stored_can_be_named_by_its_id(rig: ScriptedRig) -> None:
    first = await created(rig, "A?")
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    items = [reference, {"role": "user", "content": "B?"}]
    assert (await rig.post(PATH, input=items)).status_code == 200
    assert "One." in rig.core.prompts[-1]
    unknown = await rig.post(PATH, input=[{"type": "item_reference", "id": "msg_x"}])
    assert unknown.status_code == 404
    assert "'msg_x'" in unknown.json()["error"]["message"]


async def test_what_is_deleted_or_was_not_to_be_stored_is_not_found(rig: ScriptedRig) -> None:
    kept, passed = await created(rig, "A?"), await created(rig, "B?", store=False)
    assert (kept["store"], passed["store"]) == (True, False)
    deleted = await rig.client.delete(f"{PATH}/{kept['id']}")
    assert deleted.json() == {"id": kept["id"], "object": "response.deleted", "deleted": True}
    for gone in (kept, passed):
        assert (await rig.client.get(f"{PATH}/{gone['id']}")).status_code == 404
        answer = await rig.post(PATH, input="C?", previous_response_id=gone["id"])
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (
            404,
            "previous_response_not_found",
            "previous_response_id",
        )


async def test_only_responses_in_the_background_could_be_cancelled(rig: ScriptedRig) -> None:
    kept = await created(rig, "A?")
    assert (await rig.post(f"{PATH}/{kept['id']}/cancel")).status_code == 400
    assert (await rig.post(f"{PATH}/resp_x/cancel")).status_code == 404


async def test_input_items_are_listed_in_pages(rig: ScriptedRig) -> None:
    items = [{"role": "user", "content": text} for text in ("a", "b", "c")]
    kept = (await rig.post(PATH, input=items)).json()
    url = f"{PATH}/{kept['id']}/input_items"
    page = (await rig.client.get(url, params={"limit": 2, "order": "asc"})).json()
    assert [item["content"] for item in page["data"]] == ["a", "b"]
    assert page["has_more"]
    query = {"order": "asc", "after": page["last_id"]}
    rest = (await rig.client.get(url, params=query)).json()
    assert ([item["content"] for item in rest["data"]], rest["has_more"]) == (["c"], False)
    assert (await rig.client.get(url, params={"limit": 0})).status_code == 400


async def test_a_server_without_a_store_says_so_where_one_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "ResponseStore", lambda: ResponseStore(0))
    async with scripted(tmp_path, in_turn("One.")) as rig:
        assert (await created(rig, "A?"))["store"] is False
        for field in ({"store": True}, {"previous_response_id": "resp_x"}):
            answer = await rig.post(PATH, input="A?", **field)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, next(iter(field)))
            assert "--responses-store-mib is 0" in error["message"]


def stored(number: int, owner: str = "", size: int = 100) -> StoredResponse:
    return StoredResponse(f"resp_{number}", owner, b"x" * size, b"[]", b"[]")


def test_the_oldest_make_room_and_what_was_read_is_younger() -> None:
    store = ResponseStore(3 * stored(0).size_bytes)
    for number in range(3):
        store.add(stored(number))
    store.get("resp_0", "")
    store.add(stored(3))
    store.add(stored(9, size=10_000))  # larger than all there is
    for number, kept in enumerate((True, False, True, True)):
        if kept:
            assert store.get(f"resp_{number}", "").id == f"resp_{number}"
        else:
            with pytest.raises(RequestError, match="made room"):
                store.get(f"resp_{number}", "")
    with pytest.raises(RequestError):
        store.get("resp_9", "")


def test_a_response_is_its_clients_own() -> None:
    store = ResponseStore()
    store.add(stored(1, owner_of("key-1")))
    assert store.get("resp_1", owner_of("key-1"))
    for other in ("key-2", "addr-1"):
        with pytest.raises(RequestError):
            store.get("resp_1", owner_of(other))
    store.add(stored(2, owner_of("addr-1")))
    assert store.get("resp_2", owner_of("addr-2"))  # a laptop that has moved


def conversation(number: int, *names: str, owner: str = "", size: int = 0) -> StoredResponse:
    items = [{"id": name, "type": "message", "content": f"{number}{'x' * size}"} for name in names]
    return StoredResponse(f"resp_{number}", owner, b"{}", b"[]", msgspec.json.encode(items))


def content(store: ResponseStore, name: str, owner: str = "") -> str | None:
    """Return what a reference is replaced by; None if it stays."""
    (item,) = store.resolved([{"type": "item_reference", "id": name}], owner)
    return item.get("content")


def test_a_reference_decodes_the_item_that_it_names_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, decoded = ResponseStore(), list[int]()
    for number in range(40):
        store.add(conversation(number, f"msg_{number}", "msg_shared", size=10_000))
    real = responses_store._decode
    monkeypatch.setattr(
        responses_store, "_decode", lambda text: decoded.append(len(bytes(text))) or real(text)
    )
    assert content(store, "msg_x") is None
    assert decoded == []
    assert (content(store, "msg_3") or "").startswith("3x")
    assert (content(store, "msg_shared") or "").startswith("39x")
    assert len(decoded) == 2
    assert max(decoded) < 11_000


def test_an_item_is_found_while_any_response_has_it() -> None:
    store = ResponseStore()
    for number in range(3):
        store.add(conversation(number, "msg_a"))
    for gone, newest in ((2, "1"), (0, "1"), (1, None)):
        store.delete(f"resp_{gone}", "")
        assert content(store, "msg_a") == newest


def test_an_owner_that_stores_the_most_makes_room_for_the_others() -> None:
    one = size_bytes_of(conversation(0, "m", size=1000), [msgspec.Raw(b"")])
    store = ResponseStore(4 * one)
    store.add(conversation(1, "m", owner="key-a", size=1000))
    for number in range(2, 40):
        store.add(conversation(number, "m", owner="key-b", size=1000))
    assert content(store, "m", "key-a") is not None
    assert store.get("resp_39", "key-b")
    for number in range(40, 44):
        store.add(conversation(number, "m", owner="key-a", size=1000))
    assert store.get("resp_39", "key-b")
    with pytest.raises(RequestError):
        store.get("resp_1", "key-a")


def test_an_owner_sees_no_items_of_another() -> None:
    store = ResponseStore()
    store.add(conversation(1, "msg_a", owner="key-a"))
    assert content(store, "msg_a", "key-b") is None


def test_items_without_ids_and_repeated_ids_are_stored_and_removed() -> None:
    store = ResponseStore()
    items = [{"type": "message"}, {"id": "m", "content": "1"}, {"id": "m", "content": "2"}]
    store.add(StoredResponse("resp_1", "", b"{}", b"[]", msgspec.json.encode(items)))
    assert content(store, "m") == "2"
    store.delete("resp_1", "")
    assert content(store, "m") is None
    assert store._shares == {}
