"""Reads of single objects and of lists from an API server, over one connection.

A wait asks several times a second. kubectl starts a process for each question: 0.1 s of a core, in
place of two thousandths. Only what kubectl would answer alike is read here: a kubeconfig with
client certificates (the embedded cluster's), one resource by any of its names, a selector of
labels. For all else, and after any error, the caller asks kubectl, whose words users know.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_SECONDS = 30.0
_NOT_FOUND = 404


class UnreadError(Exception):
    """Report that kubectl has to be asked."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Locate the objects of one resource."""

    prefix: str  # such as /apis/apps/v1
    plural: str
    kind: str
    is_namespaced: bool

    @property
    def api_version(self) -> str:
        return self.prefix.removeprefix("/apis/").removeprefix("/api/")

    def path(self, namespace: str, name: str | None) -> str:
        within = f"/namespaces/{namespace}" if self.is_namespaced else ""
        return f"{self.prefix}{within}/{self.plural}{f'/{name}' if name else ''}"


@dataclass(slots=True)
class ApiReader:
    """Read from the API server at `address`; each thread has a connection of its own."""

    address: str  # host:port
    context: ssl.SSLContext
    known: dict[str, Resource] = field(default_factory=dict)
    local: threading.local = field(default_factory=threading.local)

    def get(self, namespace: str, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object as kubectl shows it; None if there is none. Raises UnreadError."""
        resource = self._resource(kind)
        found = self._ask(resource.path(namespace, urllib.parse.quote(name)))
        return None if found is None else _shown(found)

    def list(self, namespace: str, kind: str, labels: str) -> dict[str, Any]:
        """Return a List of the objects that a selector chooses. Raises UnreadError."""
        resource = self._resource(kind)
        query = urllib.parse.urlencode({"labelSelector": labels})
        found = self._ask(f"{resource.path(namespace, None)}?{query}")
        if found is None:
            raise UnreadError(kind)
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        items = [_shown({**head, **item}) for item in found["items"]]
        return {"apiVersion": "v1", "kind": "List", "items": items}

    def _resource(self, name: str) -> Resource:
        wanted = name.lower()
        if wanted not in self.known:
            self.known.update(self._discovered())
        if wanted not in self.known:
            raise UnreadError(f"no resource {name}")
        return self.known[wanted]

    def _discovered(self) -> dict[str, Resource]:
        """Return the resources by all of their names; of equal names the core group's, and then the
        first group's."""
        found: dict[str, Resource] = {}
        for root in ("/api", "/apis"):
            groups = self._ask(root, _DISCOVERY) or {}
            for group in groups.get("items") or ():
                for name, resource in _resources(root, group):
                    found.setdefault(name, resource)
        return found

    def _ask(self, path: str, accept: str = "application/json") -> dict[str, Any] | None:
        try:
            connection = getattr(self.local, "connection", None)
            if connection is None:
                connection = http.client.HTTPSConnection(
                    self.address, context=self.context, timeout=_SECONDS
                )
                self.local.connection = connection
            connection.request("GET", path, headers={"Accept": accept})
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.local.connection = None
            raise UnreadError(str(error)) from error
        if answer.status == _NOT_FOUND:
            return None
        if answer.status != http.client.OK:
            raise UnreadError(body.decode(errors="replace"))
        content: dict[str, Any] = json.loads(body)
        return content


def reader_of(kubeconfig: str) -> ApiReader | None:
    """Return the reader of a kubeconfig's cluster; None if only kubectl can use the kubeconfig."""
    try:
        return _reader(Path(kubeconfig).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=8)
def _reader(text: str) -> ApiReader | None:
    config = yaml.safe_load(text)
    try:
        (context,) = [e for e in config["contexts"] if e["name"] == config["current-context"]]
        named = context["context"]
        (cluster,) = [e["cluster"] for e in config["clusters"] if e["name"] == named["cluster"]]
        (user,) = [e["user"] for e in config["users"] if e["name"] == named["user"]]
        server = urllib.parse.urlsplit(cluster["server"])
        tls = ssl.create_default_context(cadata=_decoded(cluster["certificate-authority-data"]))
        _load(tls, user["client-certificate-data"], user["client-key-data"])
    except (KeyError, TypeError, ValueError):
        return None
    if server.scheme != "https" or server.path.strip("/") or "proxy-url" in cluster:
        return None
    return ApiReader(server.netloc, tls)


def _load(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a client's certificate, which ssl takes from a file alone."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(_decoded(certificate) + "\n" + _decoded(key))
        file.flush()
        context.load_cert_chain(file.name)


def _decoded(data: str) -> str:
    return base64.b64decode(data).decode()


def _resources(root: str, group: Mapping[str, Any]) -> Iterator[tuple[str, Resource]]:
    """Yield the resources of a group's preferred version, by each name that kubectl takes."""
    name = group["metadata"].get("name") or ""
    version = group["versions"][0]
    prefix = f"{root}/{name}/{version['version']}" if name else f"{root}/{version['version']}"
    for each in version.get("resources") or ():
        kind = each["responseKind"]["kind"]
        resource = Resource(prefix, each["resource"], kind, each["scope"] == "Namespaced")
        names = {each["resource"], each.get("singularResource"), kind.lower()}
        for one in {*names, *(each.get("shortNames") or ())} - {None, ""}:
            yield one, resource
            if name:
                yield f"{one}.{name}", resource


def _shown(item: dict[str, Any]) -> dict[str, Any]:
    """Leave out the field managers, which kubectl does not show unless it is asked."""
    item["metadata"].pop("managedFields", None)
    return item
