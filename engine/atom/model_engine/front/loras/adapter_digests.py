"""AdapterDigests: digests that prove that adapters' answers are of the same weights.

Two servers may use one name for different weights, and so may one server after a name was reused.
So a digest of an adapter's files is recorded when it is loaded, as for a model's weights.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

import xxhash

from atom.errors import AdapterError
from atom.lora_checkpoint import CONFIG_FILE, find_adapter
from atom.lora_config import LoraConfig
from atom.model_engine.front.weights_update import weights_version
from atom.model_engine.request import LoRARequest


class AdapterDigests:
    def __init__(self, base: Callable[[], str]) -> None:
        """base: returns the version of the model's own weights now."""
        self._base = base
        self._by_number: dict[int, str] = {}

    def note(self, number: int, digest: str) -> None:
        """Note an adapter's, by the number that no other adapter of this engine has."""
        self._by_number[number] = digest

    async def read_all(self, config: LoraConfig | None) -> None:
        """Record the digests of the adapters of the start, off the loop, since there may be
        many."""
        for number, module in enumerate(() if config is None else config.modules, start=1):
            path = module.folder or module.path
            self.note(number, await asyncio.to_thread(adapter_digest, path))

    def version(self, lora: LoRARequest | None) -> str:
        """Return the version of the weights by which an answer is computed. lora: None for the
        model alone."""
        if lora is None:
            return self._base()
        return f"{self._base()}+{self._by_number.get(lora.lora_int_id, unread())}"


def unread() -> str:
    """Return the digest of an adapter whose files cannot be read: no other one's."""
    return f"unread-{uuid.uuid4().hex}"


def adapter_digest(path: str) -> str:
    """Return a digest of an adapter's files, in a folder or downloaded from the hub."""
    try:
        folder = find_adapter(path)
        said = (Path(folder) / CONFIG_FILE).read_bytes()
        return f"{weights_version(folder)}-{xxhash.xxh3_64_hexdigest(said)}"
    except (AdapterError, OSError):
        return unread()
