"""Every route, with every kind of key, at every kind of server: as the guide's table says it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from atom.entrypoints.api_server import build_app, build_routes
from atom.entrypoints.http.access import SECRET_HEADER, AccessKeys, ApiKeyCheck, Needs, needs_of
from atom.entrypoints.http.api_key import FollowedKeys
from atom.entrypoints.http.dispatch import Dispatch
from atom.entrypoints.openai.state import ServerState

GUIDE = Path("docs/guides/http-api.md")
USER, OTHER, ADMIN, SECRET = "sk-user", "sk-other-user", "sk-admin", "secret-of-replicas"
SERVERS = {
    "no key": ((), ()),
    "one users' key": ((USER,), ()),
    "several users' keys": ((USER, OTHER), ()),
    "users' and administrators' keys": ((USER, OTHER), (ADMIN,)),
    "administrators' keys alone": ((), (ADMIN,)),
}
CALLERS: dict[str, dict[str, str]] = {
    "nobody": {},
    "a wrong key": {"authorization": "Bearer sk-wrong"},
    "a user": {"authorization": f"Bearer {USER}"},
    "a user by x-api-key": {"x-api-key": USER},
    "an administrator": {"x-api-key": ADMIN},
    "a replica": {SECRET_HEADER: SECRET},
    "a wrong secret": {SECRET_HEADER: f"{SECRET}x"},
    "a user's key as the secret": {SECRET_HEADER: USER},
    "the secret as a key": {"authorization": f"Bearer {SECRET}"},
}
MAY = {
    "anyone": set(CALLERS),
    "no one": set(),
    "a user": {"a user", "a user by x-api-key", "an administrator"},
    "an administrator": {"an administrator"},
    "a replica": {"a replica"},
}


def may(says: str, name: str) -> set[str]:
    """The callers whom a cell of the table means. Of a server without administrators' keys theirs
    are wrong ones."""
    _, admins = SERVERS[name]
    return MAY[says] if admins or says == "anyone" else MAY[says] - {"an administrator"}


def routes() -> set[str]:
    """All that a server answers, whether its document has them or not."""
    app = build_routes(ServerState(), needs_key=True, takes_handovers=True)
    assert isinstance(app, Dispatch)
    assert isinstance(app._others, FastAPI)
    paths = {*_paths(app._others.routes), *app._posts}
    return {re.sub(r"\{[^}]*\}", "x", path) for path in paths}


def _paths(found: Iterable[object]) -> Iterator[str]:
    for route in found:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from _paths(included.routes)
        elif isinstance(route, Mount):  # of files
            yield f"{route.path}/x"
        elif isinstance(route, Route):
            yield route.path


def table() -> dict[str, dict[str, str]]:
    """The guide's: by route who may call it at which server."""
    text = GUIDE.read_text().partition("## Who may call what")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    head = rows[0][1:]
    found = {}
    for first, *cells in rows[2:]:
        for path in re.findall(r"`(/[^`]*)`", first) or ["*"]:
            found[path] = dict(zip(head, cells, strict=True))
    return found


def row_of(path: str, rows: dict[str, dict[str, str]]) -> dict[str, str]:
    for named, row in rows.items():
        if path == named or (named.endswith("/*") and path.startswith(named[:-1])):
            return row
    return rows["*"]


async def _reached(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(status_code=204)(scope, receive, send)


def server(name: str, *, secret: bool = True) -> ASGIApp:
    users, admins = SERVERS[name]
    peers = FollowedKeys((SECRET,) if secret else ())
    return ApiKeyCheck(_reached, AccessKeys(FollowedKeys(users), FollowedKeys(admins), peers))


async def status(app: ASGIApp, path: str, headers: dict[str, str]) -> int:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        return (await client.post(path, headers=headers)).status_code


@pytest.mark.parametrize("name", SERVERS)
async def test_every_route_opens_to_whom_the_guide_says(name: str) -> None:
    app, rows = server(name), table()
    for path, (caller, headers) in product(routes(), CALLERS.items()):
        opens = await status(app, path, headers) == 204
        says = row_of(path, rows)[name]
        assert opens == (caller in may(says, name)), f"{caller} at {path}, which is for {says}"


def test_the_guide_names_every_route_that_is_not_a_users() -> None:
    rows = table()
    assert rows.keys() - {"*", "/console/*", "/static-offline-docs/*"} <= routes()
    for path in routes():
        if needs_of(path) is not Needs.USER:
            assert row_of(path, rows) is not rows["*"], f"{path} is not in the guide's table"


@pytest.mark.parametrize("name", SERVERS)
async def test_without_a_secret_there_is_no_door_for_replicas(name: str) -> None:
    app = server(name, secret=False)
    for caller, headers in CALLERS.items():
        found = await status(app, "/continue_request", headers)
        # What the key check lets through finds no route.
        assert (found == 204) == (caller in may(table()["*"][name], name))
    bare = build_routes(ServerState(), needs_key=False)
    assert await status(bare, "/continue_request", {}) == 404


async def test_refusals_tell_the_remedy() -> None:
    async def told(name: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        transport = httpx.ASGITransport(server(name))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            answer = await client.post(path, headers=headers)
        return answer.status_code, answer.json()["error"]["message"]

    user = CALLERS["a user"]
    for name, headers, code, words in (
        ("no key", {}, 403, "--admin-api-key-file"),
        ("several users' keys", user, 403, "--admin-api-key-file"),
        ("users' and administrators' keys", user, 403, "an administrator's key"),
        ("users' and administrators' keys", {}, 401, "an administrator's key"),
    ):
        found, message = await told(name, "/sleep", headers)
        assert (found, words in message) == (code, True), message
    found, message = await told("no key", "/continue_request", {})
    assert found == 403
    assert "--handover-secret-file" in message


async def test_two_secrets_count_while_one_takes_the_others_place() -> None:
    keys = AccessKeys(peers=FollowedKeys(("old-secret-of-all", "new-secret-of-all")))
    app = ApiKeyCheck(_reached, keys)
    for secret in ("old-secret-of-all", "new-secret-of-all"):
        assert await status(app, "/continue_request", {SECRET_HEADER: secret}) == 204
    assert await status(app, "/continue_request", {SECRET_HEADER: "another-secret-yet"}) == 403


async def test_a_whole_server_without_keys_takes_handovers_by_the_secret_alone() -> None:
    app = build_app(ServerState(), keys=AccessKeys(peers=FollowedKeys((SECRET,))))
    assert await status(app, "/continue_request", {}) == 403
    assert await status(app, "/continue_request", {SECRET_HEADER: SECRET}) not in (403, 404)
