"""ApiConnection: requests to the API server through the official client's asyncio transport.

Configuration, credentials, TLS and connections are the package's own (`kubernetes.aio`); paths,
bodies and answers are plain, so that manifests reach the server exactly as rendered. The one place
where an answer becomes an error of cluster/errors.py. Knows no policy. Called by the client, the
watch, the Lease and the webhook's objects.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
import yaml
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.rest import RESTResponse
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from atom_operator.cluster.errors import RefusedError, TransientError, classify
from atom_operator.kinds import Kind

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_JSON = "application/json"
_MOST_CONNECTIONS = 100
_TIMEOUT_SECONDS = 10.0  # to connect, and between two pieces of an answer
_AUTHENTICATION = ["BearerToken"]
_USER_AGENT = "atom-operator"
_UNAUTHORIZED = 401
_LOGIN_SECONDS = 10.0  # between two looks for newer credentials
_MESSAGE_LIMIT = 1000

_FIRST_ERROR = 400

T = TypeVar("T")
Login = Callable[[], Awaitable[Configuration]]


async def configuration_of_environment() -> Configuration:
    """Read the pod's service account, or else the kubeconfig of the environment."""
    found = Configuration()
    try:
        load_incluster_config(client_configuration=found)
        return found
    except ConfigException as error:
        outside = str(error)
    path = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    try:
        return await configuration_of_kubeconfig(path)
    except RefusedError as error:
        error.args = (f"{error}; and there is no service account: {outside}",)
        raise


async def configuration_of_kubeconfig(path: str) -> Configuration:
    """Read the current context of these files, separated as in KUBECONFIG."""
    found = Configuration()
    try:
        await load_kube_config(path, client_configuration=found, persist_config=False)
    except (ConfigException, yaml.YAMLError) as error:
        raise RefusedError(f"no API server is known from {path}: {error}", 400) from error
    return found


def _with_environment(configuration: Configuration) -> Configuration:
    """Set the proxy once, which aiohttp would otherwise look up for each request, in threads, at
    more than half of its cost. No netrc is read: requests carry a token or a certificate."""
    configuration.proxy = configuration.proxy or proxy_of_environment(configuration.host)
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


def proxy_of_environment(server: str) -> str | None:
    """Return the proxy by which variables such as HTTPS_PROXY say to reach the server; None where
    NO_PROXY names it."""
    url = urlsplit(server)
    return None if proxy_bypass(url.netloc) else getproxies().get(url.scheme)


def object_path(kind: Kind, namespace: str | None, name: str = "", subresource: str = "") -> str:
    """Return the path of an object, or of all of a kind; in all namespaces for None, and in none
    for ""."""
    parts = ["", "apis", kind.group, kind.version] if kind.group else ["", "api", kind.version]
    if namespace:
        parts += ["namespaces", namespace]
    parts.append(kind.plural)
    return "/".join([*parts, *(part for part in (name, subresource) if part)])


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to the API server; `silence_seconds` is for how long an answer may pause."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Mapping[str, Any] | None = None
    content: str = _JSON
    silence_seconds: float = _TIMEOUT_SECONDS


class ApiConnection:
    """A connection to the API server. `login` finds the server and the credentials, at the first
    request and once they are rejected; 0 connections are as many as there are requests."""

    def __init__(self, login: Login, most_connections: int = _MOST_CONNECTIONS) -> None:
        self._login = login
        self._most_connections = most_connections
        self._client: ApiClient | None = None
        self._logged_in_at = float("-inf")
        self._lock = asyncio.Lock()

    @classmethod
    def from_environment(cls, most_connections: int = _MOST_CONNECTIONS) -> ApiConnection:
        return cls(configuration_of_environment, most_connections)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = _JSON,
    ) -> dict[str, Any]:
        """Return the decoded answer. Raises ClusterError: NotFoundError for 404, ExpiredError for
        410."""
        answer = await self._ask(_Request(method, path, query or {}, body, content))
        found: dict[str, Any] = decoded(answer, dict)
        return found

    async def read(self, path: str, query: Mapping[str, str], type_: type[T]) -> T:
        """GET, decoded as `type_`; fields that it lacks are skipped."""
        return decoded(await self._ask(_Request("GET", path, query)), type_)

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Return the lines of an answer without an end; open once the server has accepted it.

        So long a silence is an error.
        """
        with _translated():
            answer = await self._send(_Request("GET", path, query, silence_seconds=silence_seconds))
            try:
                yield _lines(answer.response)
            finally:
                answer.response.close()

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _ask(self, request: _Request) -> bytes:
        with _translated():
            answer = await self._send(request)
            data: bytes = await answer.read()
            return data

    async def _send(self, request: _Request) -> RESTResponse:
        """Return an answer that is no error, its body unread."""
        client = await self._connected()
        method, url, headers, _, _ = await client.param_serialize(
            request.method,
            request.path,
            query_params=list(request.query.items()),
            header_params={"Accept": _JSON, "Content-Type": request.content},
            auth_settings=_AUTHENTICATION,
        )
        answer = await client.call_api(
            method,
            url,
            header_params=headers,
            body=request.body,
            _request_timeout=_timeout(request.silence_seconds),
        )
        if answer.status < _FIRST_ERROR:
            return answer
        data: bytes = await answer.read()
        if answer.status == _UNAUTHORIZED:
            await self._log_out(client)
        raise classify(answer.status, _message(answer, data))

    async def _connected(self) -> ApiClient:
        async with self._lock:
            if self._client is None:
                configuration = _with_environment(await self._login())
                configuration.connection_pool_maxsize = self._most_connections
                self._client = ApiClient(configuration)
                self._client.user_agent = _USER_AGENT
                self._logged_in_at = asyncio.get_running_loop().time()
            return self._client

    async def _log_out(self, rejected: ApiClient) -> None:
        """Read the credentials again for the next request: they may have been renewed. Requests
        under way on the same connections fail, and are retried as this one is."""
        since = asyncio.get_running_loop().time() - self._logged_in_at
        if self._client is rejected and since >= _LOGIN_SECONDS:
            await self.close()


def _timeout(silence_seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(
        total=None,
        connect=_TIMEOUT_SECONDS,  # a free one of the connections included
        sock_connect=_TIMEOUT_SECONDS,
        sock_read=silence_seconds,
    )


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield an answer's lines; aiohttp's own have a greatest length, objects have another."""
    begun = bytearray()
    async for piece in response.content.iter_any():
        *ended, rest = piece.split(b"\n")
        for line in ended:
            begun += line
            if begun:
                yield bytes(begun)
            begun.clear()
        begun += rest
    if begun:
        yield bytes(begun)


def _message(answer: RESTResponse, data: bytes) -> str:
    """Return the message of the API server's Status, or the beginning of any other answer."""
    try:
        status = msgspec.json.decode(data)
        return str(status["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        text = data.decode(errors="replace").strip()
        return f"HTTP {answer.status} {text or answer.reason}"[:_MESSAGE_LIMIT]


def decoded(data: bytes, type_: type[T]) -> T:
    """Decode an answer, or a line of one; TransientError if it has another form, as a proxy's."""
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.DecodeError as error:
        beginning = data[:_MESSAGE_LIMIT].decode(errors="replace")
        message = f"the answer is not the API server's ({error}): {beginning}"
        raise TransientError(message) from error


@contextmanager
def _translated() -> Iterator[None]:
    """Translate errors of the connection to the port's."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise TransientError(f"{type(error).__name__} {error}".strip()) from error
