"""The signature of a thinking block: what a client gives back unread.

Where reasoning is shown, it is a digest that no server checks: reasoning is the client's text like
any other. Where a client asks for it to be left out (`display: omitted`), it holds the
reasoning itself, so that the next turn's prompt has it all the same, and begins as this one did.
"""

from __future__ import annotations

import base64
import hashlib

_DIGEST, _SEAL = "atom-", "atom:"


def signature_of(thinking: str) -> str:
    """Sign reasoning that is shown."""
    return _DIGEST + hashlib.sha256(thinking.encode(errors="surrogatepass")).hexdigest()


def sealed(thinking: str) -> str:
    """Sign reasoning that is not shown."""
    return _SEAL + base64.b64encode(thinking.encode(errors="surrogatepass")).decode()


def unsealed(signature: str) -> str:
    """Return the reasoning in a signature; nothing for any other, such as another server's."""
    if not signature.startswith(_SEAL):
        return ""
    try:
        data = base64.b64decode(signature.removeprefix(_SEAL), validate=True)
        return data.decode()
    except ValueError:  # no base64, or no text in it
        return ""
