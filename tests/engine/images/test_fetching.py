"""Files of images come from where the operator allows, and from nowhere else."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from atom.images.errors import ImageError
from atom.images.fetching import MOST_FILE_BYTES, MediaSource, is_public
from atom.images.media_rules import MediaRules

_FILE = b"\x89PNG and so on"
_SITE = "pictures.example"


def _data(kind: str = "image/png", *, packed: str | None = None, more: str = ";base64") -> str:
    return f"data:{kind}{more},{base64.b64encode(_FILE).decode() if packed is None else packed}"


async def _refusal(source: MediaSource, url: str) -> str:
    with pytest.raises(ImageError) as refused:
        await source.fetch(url)
    return str(refused.value)


# ---- data URLs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        _data(),
        _data("image/jpeg"),
        _data("IMAGE/WEBP").replace("data:", "DATA:"),
        _data("image/gif", more=";charset=utf-8;base64"),
        _data().rstrip("="),
        _data(packed=base64.encodebytes(_FILE).decode()),
    ],
)
async def test_a_data_url_needs_no_permission(url: str) -> None:
    assert await MediaSource(MediaRules()).fetch(url) == _FILE


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (_data("image/svg+xml"), "of 'image/svg\\+xml'"),
        (_data("application/pdf"), "of 'application/pdf'"),
        (_data("text/html"), "of 'text/html'"),
        (_data(""), "of ''"),
        (_data(more=""), "must hold base64"),
        (_data(packed="*!"), "not valid"),
        (_data(packed="aé"), "not valid"),
        (_data(packed="abcde"), "not valid"),
        ("data:image/png;base64", "data:image/png;base64,"),
        ("data:" + "a" * 1000, "data:image/png;base64,"),
    ],
)
async def test_other_data_urls_are_refused(url: str, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        await MediaSource(MediaRules()).fetch(url)


@pytest.mark.parametrize(
    "url", ["ftp://pictures.example/a.png", "", "a.png", "//pictures.example", "gopher:x"]
)
async def test_other_schemes_are_refused(url: str) -> None:
    assert "must begin with data:" in await _refusal(MediaSource(MediaRules()), url)


# ---- files -----------------------------------------------------------------------------------


async def test_a_file_below_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "in side").mkdir()
    file = tmp_path / "in side" / "a.png"
    file.write_bytes(_FILE)
    link = tmp_path / "link.png"
    link.symlink_to(file)
    source = MediaSource(MediaRules(local_path=tmp_path))
    assert await source.fetch(file.as_uri()) == _FILE
    assert await source.fetch(f"file://localhost{tmp_path}/in%20side/../in%20side/a.png") == _FILE
    assert await source.fetch(link.as_uri()) == _FILE


async def test_a_file_elsewhere_is_refused_whether_it_exists_or_not(tmp_path: Path) -> None:
    inside, outside = tmp_path / "allowed", tmp_path / "allowed-not"
    inside.mkdir()
    outside.mkdir()
    secret = outside / "a.png"
    secret.write_bytes(_FILE)
    (inside / "link.png").symlink_to(secret)
    (inside / "folder").symlink_to(outside)
    source = MediaSource(MediaRules(local_path=inside))
    reasons = {
        await _refusal(source, url)
        for url in (
            secret.as_uri(),
            f"file://{inside}/../allowed-not/a.png",
            f"file://{inside}/%2e%2e/allowed-not/a.png",
            (inside / "link.png").as_uri(),
            (inside / "folder" / "a.png").as_uri(),
            (inside / "absent.png").as_uri(),
            "file:///etc/passwd",
            f"file://{inside}/a%00.png",
        )
    }
    assert reasons == {"the file is not below the folder of --allowed-local-media-path"}
    assert "names another machine" in await _refusal(source, f"file://host{inside}/a.png")
    assert "must name a file" in await _refusal(source, inside.as_uri())


async def test_no_file_is_read_without_permission(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(_FILE)
    url = (tmp_path / "a.png").as_uri()
    assert "--allowed-local-media-path" in await _refusal(MediaSource(MediaRules()), url)


async def test_a_file_above_the_limit_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(MOST_FILE_BYTES + 1)
    source = MediaSource(MediaRules(local_path=tmp_path))
    assert "larger than 20 MiB" in await _refusal(source, (tmp_path / "a.png").as_uri())


# ---- sites -----------------------------------------------------------------------------------

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Site:
    """A site of this machine that counts what it is asked. source: to which its host is public."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.port = 0
        self.ended = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.host.partition(':')[0]}{request.path}")
        match request.path:
            case "/a.png":
                return web.Response(body=_FILE, headers={"Content-Encoding": "identity"})
            case "/large.png":
                return web.Response(body=bytes(MOST_FILE_BYTES + 1))
            case "/endless.png":
                return await self._endless(request)
            case "/silent.png":
                await self.ended.wait()
            case "/moved.png":
                raise web.HTTPFound("/a.png")
            case "/away.png":
                raise web.HTTPFound(f"http://elsewhere.example:{self.port}/a.png")
            case "/inside.png":
                raise web.HTTPFound(f"http://inside.example:{self.port}/a.png")
            case "/file.png":
                raise web.HTTPFound("file:///etc/passwd")
            case "/loop.png":
                raise web.HTTPFound("/loop.png")
        raise web.HTTPNotFound

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(bytes(1 << 20))

    def url(self, path: str, host: str = _SITE) -> str:
        return f"http://{host}:{self.port}/{path}"


@pytest.fixture
async def site() -> AsyncIterator[_Site]:
    made = _Site()
    app = web.Application()
    app.router.add_get("/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    assert listener._server is not None
    made.port = listener._server.sockets[0].getsockname()[1]
    yield made
    made.ended.set()
    await runner.cleanup()


def _source(most_seconds: float = 10.0) -> MediaSource:
    """Return a source whose allowed sites are this machine, but for one with a private address."""

    async def resolve(host: str) -> list[str]:
        return ["10.0.0.8"] if host == "inside.example" else ["127.0.0.1"]

    return MediaSource(
        MediaRules(domains=frozenset({_SITE, "inside.example"})),
        resolve=resolve,
        may_call=lambda address: address == "127.0.0.1",
        most_seconds=most_seconds,
    )


async def test_an_allowed_site_is_asked_and_its_redirects_followed(site: _Site) -> None:
    assert await _source().fetch(site.url("a.png")) == _FILE
    assert await _source().fetch(site.url("moved.png", _SITE.upper())) == _FILE
    assert site.asked == [f"{_SITE}/a.png", f"{_SITE}/moved.png", f"{_SITE}/a.png"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("away.png", "elsewhere.example' is not one of --allowed-media-domains"),
        ("inside.png", "inside.example' has an address of a private network"),
        ("file.png", "must be of http or https"),
        ("loop.png", "redirects more than 3 times"),
        ("large.png", "larger than 20 MiB"),
        ("endless.png", "larger than 20 MiB"),
        ("absent.png", "answered with status 404"),
    ],
)
async def test_an_answer_that_is_not_allowed_is_refused(
    site: _Site, path: str, reason: str
) -> None:
    assert reason in await _refusal(_source(), site.url(path))
    assert all(asked.startswith(f"{_SITE}/") for asked in site.asked)


async def test_a_silent_site_does_not_hold_a_request(site: _Site) -> None:
    assert "did not send it within" in await _refusal(_source(0.1), site.url("silent.png"))


@pytest.mark.parametrize(
    "url",
    [
        "http://elsewhere.example/a.png",
        "http://sub.pictures.example/a.png",
        "http://pictures.example.elsewhere.example/a.png",
        "http://pictures.example@elsewhere.example/a.png",
        "http://elsewhere.example#@pictures.example/a.png",
        "http://elsewhere.example\\@pictures.example/a.png",
        "http://user:word@pictures.example/a.png",
        "http://127.0.0.1/a.png",
        "http://[::1]/a.png",
        "http://2130706433/a.png",
        "http:///a.png",
        "https://",
        "http://pictures.example:99999/a.png",
        "http://[",
    ],
)
async def test_no_other_url_is_asked(url: str) -> None:
    asked: list[str] = []

    async def resolve(host: str) -> list[str]:
        asked.append(host)
        return ["192.0.2.1"]

    source = MediaSource(MediaRules(domains=frozenset({_SITE})), resolve=resolve)
    await _refusal(source, url)
    assert asked in ([], [_SITE])


async def test_no_url_is_asked_without_permission() -> None:
    reason = await _refusal(MediaSource(MediaRules()), f"https://{_SITE}/a.png")
    assert "--allowed-media-domains" in reason


@pytest.mark.parametrize(
    "addresses",
    [["8.8.8.8", "10.0.0.1"], ["169.254.169.254"], ["127.0.0.1"], [], ["not an address"]],
)
async def test_a_name_with_any_private_address_is_refused(addresses: list[str]) -> None:
    async def resolve(host: str) -> list[str]:
        return addresses

    source = MediaSource(MediaRules(domains=frozenset({_SITE})), resolve=resolve)
    assert "address" in await _refusal(source, f"http://{_SITE}/a.png")


_PRIVATE = """
    127.0.0.1 127.255.255.254 0.0.0.0 10.1.2.3 172.16.0.1 172.31.255.255 192.168.0.1
    169.254.169.254 169.254.0.1 100.64.0.1 100.100.100.200 168.63.129.16 192.0.0.1 198.18.0.1
    224.0.0.1 240.0.0.1 255.255.255.255 ::1 :: fe80::1 fc00::1 fd00:ec2::254 ff02::1
    ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::a00:1 64:ff9b::7f00:1
    2002:7f00:1:: 2002:a00:1:: 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:db8::1
"""


@pytest.mark.parametrize("address", _PRIVATE.split())
def test_addresses_of_networks_of_ones_own_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)
