"""`encrypted_content` of a reasoning item: how a client that stores nothing here returns reasoning.

It holds the reasoning's own text, in base64 after a mark: its reader can decode it, as it can read
the text beside it. Other servers' encrypted content is unreadable here, and ignored.
"""

from __future__ import annotations

import base64
import binascii

_MARK = "atom1."


def sealed(text: str) -> str:
    return _MARK + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def opened(content: str) -> str | None:
    """Return the reasoning's text; None if another server wrote it, or it is damaged."""
    if not content.startswith(_MARK):
        return None
    try:
        data = base64.b64decode(content[len(_MARK) :], validate=True)
        return data.decode("utf-8", "surrogatepass")
    except (binascii.Error, UnicodeDecodeError):
        return None
