"""PageNames: the names of pages outside the process that computed them.

The prefix cache's hashes cover tokens, salt, group of layers and an adapter's number; a number
means different weights to another server, so a name covers the digest of the adapter's files too.
A page of an adapter without a digest has no name and stays in memory. Pure, but for the digests.
"""

from __future__ import annotations

import hashlib

from atom.model_engine.blocks.host_pages import Page
from atom.model_engine.kv_disk.page_file import NAME_BYTES

_PAGE, _STATE = b"\x00", b"\x01"


class PageNames:
    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}  # of adapters, by number

    def note_adapter(self, number: int, digest: str) -> None:
        """Note the digest of an adapter's files, by the number that requests select it with."""
        self._digests[number] = digest.encode()

    def adapter(self, number: int | None) -> bytes | None:
        """Return the digest of an adapter's files, which the names of its pages cover; empty for
        the model alone, and None if its pages have no names."""
        return b"" if number is None else self._digests.get(number)

    def name(self, page: Page, *, is_state: bool = False) -> bytes | None:
        """Return the name of a page, or of the checkpoint of states at its block's end; None for a
        page without one."""
        adapter = self.adapter(page.lora)
        if adapter is None:
            return None
        return block_name(page.hash, page.parent, page.packed, adapter, is_state=is_state)


def block_name(
    hash_: int, parent: int, packed: bytes, adapter: bytes = b"", *, is_state: bool = False
) -> bytes:
    """Return the name of a block's page, 16 bytes. adapter: as `PageNames.adapter` returns it."""
    chain = hash_.to_bytes(8, "little") + parent.to_bytes(8, "little")
    salt = _STATE if is_state else _PAGE
    return hashlib.blake2b(chain + packed + adapter, digest_size=NAME_BYTES, salt=salt).digest()
