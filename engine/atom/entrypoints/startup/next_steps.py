"""The lines that follow the start-up table: what a person can do with this server. Pure.

Every line works as it is printed: it asks for an endpoint that the served model answers, names the
model if there are several, and has the options that curl needs for the server's certificate.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from atom.entrypoints.startup.supported_endpoints import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RERANK,
    Offer,
)

_EXAMPLES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hello"}]},
    COMPLETIONS: {"prompt": "Hello", "max_tokens": 32},
    EMBEDDINGS: {"input": "Hello"},
    RERANK: {"query": "Hello", "documents": ["Good morning.", "A recipe for bread."]},
}
_WHY_NO_CHAT = {
    COMPLETIONS: "the model has no chat template: give one by --chat-template FILE",
    EMBEDDINGS: "the model turns texts into vectors",
    RERANK: "the model scores texts",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server that listens. needs_key: clients must send one. console: it has a
    page at /. client_certificate: clients must have one."""

    url: str
    needs_key: bool = False
    console: bool = True
    client_certificate: bool = False

    @property
    def reachable(self) -> str:
        """Return an address that a terminal can open: of every address this machine's own."""
        return self.url.replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://[::1]:")


def next_steps(address: Address, offers: Sequence[Offer]) -> Iterator[str]:
    """Yield lines that suggest the next steps with a server. offers: its models; one at least."""
    url = address.reachable
    chosen = next((each for each in offers if CHAT in each.endpoints), offers[0])
    if CHAT in chosen.endpoints:
        yield f"chat in a browser   {url}/" if address.console else _pages(url)
    else:
        yield f"no chats            {_WHY_NO_CHAT[chosen.endpoints[0]]}"
        yield _pages(url)
    path = chosen.endpoints[0]
    body = _EXAMPLES[path] if len(offers) == 1 else {"model": chosen.name, **_EXAMPLES[path]}
    words = json.dumps(body).replace("'", "\\u0027")  # it stands in the shell's quotes
    yield (
        f"ask from a shell    curl{_curl_options(address)} {url}{path} "
        f"-H 'Content-Type: application/json' -d '{words}'"
    )


def _pages(url: str) -> str:
    return f"the API's pages     {url}/docs"


def _curl_options(address: Address) -> str:
    """Return the options, each after a space. A certificate seldom names this machine's own
    address, so curl is not to compare them."""
    options = [
        *(["--insecure"] if address.reachable.startswith("https:") else []),
        *(["--cert FILE --key FILE"] if address.client_certificate else []),
        *(['-H "Authorization: Bearer $KEY"'] if address.needs_key else []),
    ]
    return "".join(f" {option}" for option in options)
