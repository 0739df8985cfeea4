"""Who may call which route, and the ids that requests carry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from atom.config import Config, EngineOptions
from atom.entrypoints.http.access import OPEN_PATHS, PAGE_PATHS
from atom.entrypoints.http.api_key import (
    FollowedKeys,
    KeyFile,
    NamedKey,
    read_api_key,
    read_api_keys,
    read_key_file,
)
from atom.entrypoints.server.server_options import ServerOptions
from atom.entrypoints.server_parts import ClientOptions
from atom.errors import AtomError, ConfigError
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import AppRig, serve_app
from tests.support.waiting import eventually, within

KEY = "sk-of-the-test"
RIGHT = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return build_test_config(write_model_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
async def locked(config: Config) -> AsyncIterator[AppRig]:
    async with serve_app(config, api_key=KEY) as rig:
        yield rig


@pytest.fixture
async def rig(config: Config) -> AsyncIterator[AppRig]:
    async with serve_app(config) as rig:
        yield rig


@pytest.mark.parametrize(
    "header",
    [None, "", KEY, f"Basic {KEY}", "Bearer", f"Bearer {KEY}x", "Bearer ÿ"],
)
async def test_without_the_right_key_nothing_is_generated(locked: AppRig, header) -> None:
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    body = {"prompt": "ab", "max_tokens": 2}
    response = await locked.client.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["type"] == "authentication_error"
    assert KEY not in response.text
    assert locked.core.added == []


async def test_the_right_key_opens_every_route(locked: AppRig) -> None:
    for scheme in ("Bearer", "bearer"):
        headers = {"authorization": f"{scheme} {KEY}"}
        response = await locked.client.get("/v1/models", headers=headers)
        assert response.status_code == 200
    unknown = await locked.client.get("/nothing", headers=RIGHT)
    assert unknown.status_code == 404


async def test_every_route_but_probes_facts_and_pages_needs_the_key(locked: AppRig) -> None:
    document = (await locked.client.get("/openapi.json", headers=RIGHT)).json()
    paths = {*document["paths"], "/openapi.json", "/docs", "/nothing"}
    open_paths = OPEN_PATHS | PAGE_PATHS  # a browser that opens a page can send no key
    assert paths >= OPEN_PATHS
    for path in paths:
        status = (await locked.client.get(path)).status_code
        assert (status == 401) == (path not in open_paths), path


async def test_an_id_that_the_client_gave_comes_back(rig: AppRig) -> None:
    for path, status in (("/health", 200), ("/nothing", 404)):
        response = await rig.client.get(path, headers={"x-request-id": "trace-1:a/b"})
        assert response.status_code == status
        assert response.headers.get_list("x-request-id") == ["trace-1:a/b"]


@pytest.mark.parametrize("given", [None, "", "two words", "x" * 129, 'a"b'])
async def test_a_request_without_a_usable_id_gets_one(rig: AppRig, given: str | None) -> None:
    headers = {} if given is None else {"x-request-id": given}
    seen = {
        (await rig.client.get("/version", headers=headers)).headers["x-request-id"]
        for _ in range(2)
    }
    assert len(seen) == 2
    assert given not in seen


async def test_streams_and_refusals_carry_the_id(locked: AppRig) -> None:
    headers = {"x-request-id": "mine"}
    assert (await locked.client.get("/v1/models", headers=headers)).headers[
        "x-request-id"
    ] == "mine"
    body = {"prompt": "ab", "max_tokens": 2, "stream": True}
    both = {**headers, **RIGHT}
    async with locked.client.stream("POST", "/v1/completions", json=body, headers=both) as response:
        assert response.status_code == 200
        assert response.headers["x-request-id"] == "mine"
        await response.aread()


async def test_a_fault_of_ours_is_logged_and_answered_with_the_id(
    rig: AppRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.engine.processor.inputs = None  # type: ignore[assignment]
    response = await rig.client.post(
        "/v1/completions", json={"prompt": "ab"}, headers={"x-request-id": "mine"}
    )
    assert (response.status_code, response.headers["x-request-id"]) == (500, "mine")
    assert "request mine failed" in caplog.text


# ---- control routes -----------------------------------------------------------------------------


async def test_the_prefix_cache_is_reset_for_who_has_the_key(locked: AppRig) -> None:
    assert (await locked.post("/reset_prefix_cache")).status_code == 401
    assert locked.core.utilities == []
    response = await locked.client.post("/reset_prefix_cache", headers=RIGHT)
    assert response.status_code == 200
    assert locked.core.utilities == ["reset_prefix_cache"]


async def test_control_routes_are_off_without_a_key(rig: AppRig) -> None:
    for headers in ({}, RIGHT):
        response = await rig.client.post("/reset_prefix_cache", headers=headers)
        assert response.status_code == 403
        assert "--api-key-file" in response.json()["error"]["message"]
    assert rig.core.utilities == []


async def test_profiles_are_refused_where_no_folder_is_named(locked: AppRig) -> None:
    for path in ("/start_profile", "/stop_profile"):
        response = await locked.client.post(path, headers=RIGHT)
        assert response.status_code == 403
        assert "--torch-profiler-dir" in response.json()["error"]["message"]
    assert locked.core.utilities == []


async def test_an_engine_that_dies_meanwhile_answers_the_call(config: Config) -> None:
    async with serve_app(config, api_key=KEY, held=True) as rig:
        call = rig.client.post("/reset_prefix_cache", headers=RIGHT)
        calling = asyncio.create_task(call)
        await eventually(lambda: bool(rig.core.utilities), "the call in the engine")
        rig.core.die("out of memory")
        response = await within(calling, "the call was answered")
        assert response.status_code == 503
        assert "out of memory" in response.json()["error"]["message"]


async def test_what_a_utility_says_is_wrong_reaches_the_caller(rig: AppRig) -> None:
    with pytest.raises(AtomError, match="no utility 'fly'"):
        await rig.engine.call_utility("fly")


# ---- where the key comes from -------------------------------------------------------------------


def test_the_file_goes_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from-file\n")
    environment = {"ATOM_API_KEY": "from-environment"}
    assert read_api_key(file, environment) == "from-file"
    assert read_api_key(None, environment) == "from-environment"
    assert read_api_key(None, {}) is None


@pytest.mark.parametrize("text", ["", " \n", "two words", "schlüssel", "two\nlines"])
def test_an_unusable_key_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="api-key-file") as refused:
        read_api_key(file, {})
    assert not text.strip() or text not in str(refused.value)
    with pytest.raises(ConfigError, match="ATOM_API_KEY"):
        read_api_key(None, {"ATOM_API_KEY": text})


def test_a_missing_key_file_is_an_error_not_an_open_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_api_key(tmp_path / "none", {"ATOM_API_KEY": KEY})


def test_the_key_is_not_shown_with_the_options() -> None:
    assert KEY not in repr(
        ServerOptions(engine=EngineOptions.of(model="m"), clients=ClientOptions(api_keys=(KEY,)))
    )


def secret(folder: Path, **keys: str) -> Path:
    """A mounted Secret: files that are links into a folder, which is changed by a link's change."""
    folder.mkdir(exist_ok=True)
    data = folder / f"..{len(list(folder.iterdir()))}"
    data.mkdir()
    for name, key in keys.items():
        (data / name).write_text(key)
    other = folder / "..data_tmp"
    other.symlink_to(data.name)
    other.replace(folder / "..data")
    for file in folder.iterdir():
        if not file.name.startswith(".") and file.name not in keys:
            file.unlink()
    for name in keys:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    return folder


def test_keys_of_a_mounted_secret_are_followed_by_name(tmp_path: Path) -> None:
    now = [0.0]
    folder = secret(tmp_path / "keys", team_a="first", team_b="second\n")
    keys = FollowedKeys((), read_key_file(folder), monotonic=lambda: now[0])
    assert keys.name_of(b"first") == "team_a"
    assert keys.name_of(b"second") == "team_b"
    assert keys.name_of(b"third") is None
    secret(folder, team_a="fourth", team_c="third", broken="two words")
    now[0] += 1
    assert keys.name_of(b"fourth") == "team_a"
    assert keys.name_of(b"third") == "team_c"
    assert keys.name_of(b"first") is None, "it was rotated"
    assert keys.name_of(b"second") is None, "it is gone, although another entry is broken"
    secret(folder)
    now[0] += 1
    assert keys.name_of(b"third") == "team_c", "an empty folder opens and closes no server"
    with pytest.raises(ConfigError, match="0 keys"):
        read_key_file(folder)


def test_a_file_may_hold_several_named_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the teams\nteam-a: sk-1=\n\nteam-b: sk-2\n")
    found = read_key_file(file)
    assert found is not None
    keys = FollowedKeys(("of-the-line",), found)
    assert [keys.name_of(key) for key in (b"sk-1=", b"sk-2", b"of-the-line")] == [
        "team-a", "team-b", "",
    ]  # fmt: skip
    for text in ("team a: sk-1\n", "team-a: two words\n", f"{'x' * 49}: sk-1\n"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="api-key-file") as refused:
            read_key_file(file)
        assert "two words" not in str(refused.value)
    assert KEY not in repr(
        ServerOptions(
            engine=EngineOptions.of(model="m"),
            clients=ClientOptions(api_key_file=KeyFile(file, (NamedKey("team-a", KEY),))),
        )
    )


async def test_figures_tell_of_keys_by_name_and_never_of_keys(
    config: Config, tmp_path: Path
) -> None:
    folder = secret(tmp_path / "keys", team_a="sk-secret-1", team_b="sk-secret-2")
    async with serve_app(config, api_key_file=read_key_file(folder)) as rig:
        for key, times in (("sk-secret-1", 2), ("sk-secret-2", 1)):
            headers = {"authorization": f"Bearer {key}"}
            for _ in range(times):
                body = {"prompt": "abcd", "max_tokens": 3}
                answer = await rig.client.post("/v1/completions", json=body, headers=headers)
                assert answer.status_code == 200
        told = (await rig.client.get("/metrics")).text
        lines = [line for line in told.splitlines() if 'client="key-team_' in line]
        generated = {line for line in lines if "client_generation_tokens" in line}
        assert {line.rpartition(" ")[2] for line in generated} == {"6.0", "3.0"}
        assert "sk-secret" not in told
        open_connection = rig.client  # it stays open through the rotation
        secret(folder, team_a="sk-secret-3")
        await eventually_refused(open_connection, "sk-secret-1")
        headers = {"authorization": "Bearer sk-secret-3"}
        assert (await open_connection.get("/v1/models", headers=headers)).status_code == 200


async def eventually_refused(client: httpx.AsyncClient, key: str) -> None:
    headers = {"authorization": f"Bearer {key}"}

    async def is_refused() -> bool:
        return (await client.get("/v1/models", headers=headers)).status_code == 401

    await eventually(is_refused, "the key counts no more")


def test_a_key_is_followed_in_its_file(tmp_path: Path) -> None:
    """As a mounted Secret changes: another file takes the place of the one before."""
    now, file = [0.0], tmp_path / "key"

    def put(text: str) -> None:
        other = tmp_path / "other"
        other.write_text(text)
        other.replace(file)

    put("first")
    keys = read_api_keys(["of-the-line"], file, {})
    key = FollowedKeys(keys, read_key_file(file), monotonic=lambda: now[0])
    assert key.current() == [b"of-the-line", b"first"]
    put("second")
    assert key.current() == [b"of-the-line", b"first"], "looked at once a second"
    now[0] += 1
    assert key.current() == [b"of-the-line", b"second"]
    for text in ("", "two words", "schlüssel"):
        put(text)
        now[0] += 1
        assert key.current()[1:] == [b"second"], "it counts until there is another"
    file.unlink()
    now[0] += 1
    assert key.current()[1:] == [b"second"]
    put("third\n")
    now[0] += 1
    assert key.current()[1:] == [b"third"]


def test_keys_without_a_file_stay() -> None:
    assert FollowedKeys(("a", "b")).current() == [b"a", b"b"]
    assert not FollowedKeys(())


def test_a_secret_counts_a_while_behind_the_one_that_took_its_place(tmp_path: Path) -> None:
    now, file = [0.0], tmp_path / "secret"
    file.write_text("old-secret-of-all")
    keys = FollowedKeys((), read_key_file(file), monotonic=lambda: now[0], kept_seconds=300.0)
    assert keys.current() == [b"old-secret-of-all"]
    other = tmp_path / "other"
    other.write_text("new-secret-of-all")
    other.replace(file)
    now[0] += 1
    assert keys.current() == [b"new-secret-of-all", b"old-secret-of-all"]
    now[0] += 299
    assert keys.name_of(b"old-secret-of-all") == ""
    now[0] += 1
    assert keys.current() == [b"new-secret-of-all"]
