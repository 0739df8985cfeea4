"""The address of a server, as people give it to a client: with or without /v1, a slash or a path.

Standard library only; commands use it as the type of their --base-url.
"""

from __future__ import annotations

import argparse
import re
from urllib.parse import urlsplit

# The API's own paths, which a base URL has if a user copied the whole address of an endpoint.
_API = re.compile(r"(/v1)+(/(chat/)?completions|/responses|/messages|/models)?/*$")
_EXAMPLE = "give http://HOST:PORT, such as http://127.0.0.1:8000"


def server_url(text: str) -> str:
    """Return the address of a server without the API's /v1 and without a slash at its end. Raises
    `argparse.ArgumentTypeError`."""
    shown = text.strip()
    try:
        parts = urlsplit(shown)
        port = parts.port
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}; {_EXAMPLE}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        meant = f"http://{shown}" if re.fullmatch(r"[\w.\-]+(:\d+)?(/\S*)?", shown) else ""
        remedy = f"did you mean {meant}?" if meant else _EXAMPLE
        raise argparse.ArgumentTypeError(f"{text!r} is no address of a server; {remedy}")
    if port == 0 or any(letter.isspace() for letter in shown):
        raise argparse.ArgumentTypeError(f"{text!r} is no address of a server; {_EXAMPLE}")
    if parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(
            f"{text!r}: an address of a server ends before ? and #; {_EXAMPLE}"
        )
    return f"{parts.scheme}://{parts.netloc}{_API.sub('', parts.path).rstrip('/')}"
