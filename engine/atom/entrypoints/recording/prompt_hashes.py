"""Hashes of a prompt's blocks, by which prompts with the same beginning are told.

Each hash is of a block and of all that is before it, as the prefix cache names its blocks. The
hashes are keyed by a secret that ends with the process, so that a reader of a recording cannot
find out whether a guessed text was in a prompt. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b

from atom.model_engine.request import Request

BLOCK_TOKENS = 16  # of each hash; `atom bench serve` and `atom advise` expect as many
_ID_BYTES = 6  # fewer than the 53 bits of a number that every reader of JSON keeps


def prompt_hashes(request: Request, key: bytes) -> list[int]:
    """Return a number for each whole block of the prompt. Requests whose prompts the prefix cache
    would not share, by their salt, adapter or images, have other numbers."""
    scope = f"{request.lora.lora_name if request.lora else ''}\0{request.cache_salt}"
    before = blake2b(scope.encode(), key=key).digest()
    tokens = array("q", request.prompt_token_ids)
    found = []
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = tokens[start : start + BLOCK_TOKENS].tobytes()
        images = b"".join(_images_from(request, start)) if request.images else b""
        before = blake2b(before + block + images, key=key).digest()
        found.append(int.from_bytes(before[:_ID_BYTES]))
    return found


def _images_from(request: Request, start: int) -> Iterator[bytes]:
    """Yield the digests of the images that begin in a block."""
    for image in request.images:
        if start <= image.offset < start + BLOCK_TOKENS:
            yield image.digest
