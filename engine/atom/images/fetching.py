"""Fetch the file of an image: from a data URL, an allowed site, or a file below an allowed folder.

A server that fetches a client's URL can be made to call its own network. So a host must be on the
operator's list, its name is resolved once, the connection goes to that address, every address must
be public, and each redirect is checked again. A file must be below the operator's folder after all
links are resolved. Knows no pictures.
"""

from __future__ import annotations

import asyncio
import binascii
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from atom.images.errors import ImageError
from atom.images.media_rules import MediaRules

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

_Asked = TypeVar("_Asked")
_Result = TypeVar("_Result")

MOST_FILE_BYTES = 20 * 2**20
MOST_SECONDS = 10.0
_MOST_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_DATA_URL = re.compile(r"data:(?P<type>[^,;]*)(?P<parameters>(;[^,;]*)*),", re.IGNORECASE)
_MEDIA_TYPES = ("image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif")
_LONGEST_QUOTE = 80
_SMALL_BYTES = 64 * 2**10  # hashed and unpacked at once
_PIECE = 1 << 20  # characters of base64, whole groups of four
# Public addresses at which clouds answer the machines that they run.
_METADATA = frozenset({ipaddress.ip_address("168.63.129.16")})
_EMBEDDING = (
    (ipaddress.ip_network("64:ff9b::/96"), 0),  # NAT64
    (ipaddress.ip_network("2002::/16"), 80),  # 6to4
)

# Resolves a host to its addresses.
Resolve = Callable[[str], Awaitable[Sequence[str]]]


class MediaSource:
    """Fetches the files of one server's images."""

    def __init__(
        self,
        rules: MediaRules,
        *,
        resolve: Resolve | None = None,
        may_call: Callable[[str], bool] | None = None,
        most_seconds: float = MOST_SECONDS,
    ) -> None:
        """resolve: hosts to addresses, of the system unless given. may_call: which addresses may be
        called, those of the public internet unless given."""
        self._rules = rules
        self._resolve = resolve or _addresses_of
        self._may_call = may_call or is_public
        self._most_seconds = most_seconds

    async def fetch(self, url: str) -> bytes:
        """Return the bytes that a URL names. Raises `ImageError` with the reason."""
        scheme = url[:8].partition(":")[0].lower()
        if scheme == "data":
            return await beside(len(url), _data_of, url)
        if scheme in ("http", "https"):
            return await self._download(url)
        if scheme == "file":
            return await asyncio.to_thread(self._read_file, url)
        raise ImageError(
            "the URL must begin with data:, https:, http: or file:, and begins with "
            f"{url[:_LONGEST_QUOTE]!r}"
        )

    async def _download(self, url: str) -> bytes:
        import aiohttp  # an import of 0.1 s, which data URLs do without
        from yarl import URL

        if not self._rules.domains:
            raise ImageError(
                "this server fetches no URLs; send the picture as a data URL, or start the server "
                "with --allowed-media-domains"
            )
        try:
            async with asyncio.timeout(self._most_seconds):
                return await self._follow(URL(url))
        except TimeoutError as error:
            raise ImageError(f"its site did not send it within {self._most_seconds:g} s") from error
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise ImageError(f"it cannot be fetched ({type(error).__name__})") from error

    async def _follow(self, url: URL) -> bytes:
        """Fetch a URL and its redirects."""
        import aiohttp

        for _ in range(_MOST_REDIRECTS + 1):
            address = await self._checked_address(url)
            connector = aiohttp.TCPConnector(resolver=_pinned(address), use_dns_cache=False)
            async with (
                aiohttp.ClientSession(
                    connector=connector, trust_env=False, auto_decompress=False
                ) as session,
                session.get(
                    url, allow_redirects=False, headers={"Accept-Encoding": "identity"}
                ) as answer,
            ):
                if answer.status not in _REDIRECTS:
                    return await _body_of(answer)
                place = answer.headers.get("Location", "")
            from yarl import URL

            url = url.join(URL(place))
        raise ImageError(f"its site redirects more than {_MOST_REDIRECTS} times")

    async def _checked_address(self, url: URL) -> str:
        """Return the address to connect to. Raises `ImageError` for a URL that is not allowed."""
        host = (url.host or "").rstrip(".").lower()
        if url.scheme not in ("http", "https") or url.user or url.password:
            raise ImageError("the URL must be of http or https, without a user's name")
        if host not in self._rules.domains:
            raise ImageError(
                f"the site {host[:_LONGEST_QUOTE]!r} is not one of --allowed-media-domains; send "
                "the picture as a data URL"
            )
        addresses = await self._resolve(host)
        if not addresses:
            raise ImageError(f"the site {host!r} has no address")
        for address in addresses:
            if not self._may_call(address):
                raise ImageError(
                    f"the site {host!r} has an address of a private network or of this machine, "
                    "which this server does not call; send the picture as a data URL"
                )
        return addresses[0]

    def _read_file(self, url: str) -> bytes:
        root = self._rules.local_path
        if root is None:
            raise ImageError(
                "this server reads no files; send the picture as a data URL, or start the server "
                "with --allowed-local-media-path"
            )
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise ImageError("the URL of a file names another machine; use file:///path")
        refused = ImageError("the file is not below the folder of --allowed-local-media-path")
        try:
            named, folder = Path(unquote(parts.path)).resolve(strict=True), root.resolve()
            if not named.is_relative_to(folder):
                raise refused
            descriptor = os.open(named, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (OSError, ValueError):
            raise refused from None  # also for a file elsewhere: nothing is said of those
        try:
            # What was opened, if a folder on its path became a link meanwhile.
            opened = Path(f"/proc/self/fd/{descriptor}")
            if opened.exists() and not opened.resolve().is_relative_to(folder):
                raise refused
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ImageError("the URL of a file must name a file, and no folder or device")
            _check_size(status.st_size)
            with os.fdopen(os.dup(descriptor), "rb") as file:
                return file.read(MOST_FILE_BYTES)
        finally:
            os.close(descriptor)


async def beside(size_bytes: int, work: Callable[[_Asked], _Result], asked: _Asked) -> _Result:
    """Do the work on a thread if it is large, so that the event loop goes on."""
    return work(asked) if size_bytes <= _SMALL_BYTES else await asyncio.to_thread(work, asked)


def _data_of(url: str) -> bytes:
    """Return the bytes of a data URL. Raises `ImageError`."""
    head = _DATA_URL.match(url, 0, 256)
    if head is None:
        raise ImageError("the data URL must be data:image/png;base64,… (or jpeg, webp, gif)")
    kind = head["type"].strip().lower()
    if kind not in _MEDIA_TYPES:
        raise ImageError(f"the data URL is of {kind[:40]!r}; send {', '.join(_MEDIA_TYPES)}")
    if not head["parameters"].lower().endswith(";base64"):
        raise ImageError("the data URL must hold base64: data:image/png;base64,…")
    return from_base64(url[head.end() :])


def from_base64(text: str) -> bytes:
    """Return the bytes of a base64 text, with or without its padding. Raises `ImageError`."""
    try:
        packed = b"".join(text.encode("ascii").split())
        packed += b"=" * (-len(packed) % 4)
        if 0 <= packed.find(b"=") < len(packed) - 2:
            raise ValueError("text after the end")
        # In pieces, so that another thread's turn comes between them.
        pieces = range(0, len(packed), _PIECE)
        return b"".join(
            binascii.a2b_base64(packed[at : at + _PIECE], strict_mode=True) for at in pieces
        )
    except ValueError as error:
        raise ImageError("its base64 is not valid; encode the file again") from error


def is_public(text: str) -> bool:
    """Return whether an address is one of the public internet, also inside other addresses."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(str(address.ipv4_mapped))
        for network, shift in _EMBEDDING:
            if address in network:
                return is_public(str(ipaddress.IPv4Address((int(address) >> shift) & 0xFFFFFFFF)))
        if address.teredo is not None:
            return False
    return address.is_global and not address.is_multicast and address not in _METADATA


async def _addresses_of(host: str) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _pinned(address: str) -> Any:
    """Return a resolver that gives every host this address."""
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Pinned(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            kind = socket.AF_INET6 if ":" in address else socket.AF_INET
            return [
                ResolveResult(
                    hostname=host, host=address, port=port, family=kind, proto=0,
                    flags=socket.AI_NUMERICHOST,
                )
            ]  # fmt: skip

        async def close(self) -> None:
            return None

    return Pinned()


async def _body_of(answer: aiohttp.ClientResponse) -> bytes:
    if answer.status != 200:
        raise ImageError(f"its site answered with status {answer.status}")
    if answer.content_length is not None:
        _check_size(answer.content_length)
    found = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        found += chunk
        _check_size(len(found))
    return bytes(found)


def _check_size(num_bytes: int) -> None:
    if num_bytes > MOST_FILE_BYTES:
        raise ImageError(
            f"the file is larger than {MOST_FILE_BYTES // 2**20} MiB; send a smaller picture"
        )
