"""LoraChanges: adapters that come and go while the engine serves. One at a time.

The engine's processes read and hold them; which names there are is ServedLoras. Owned by
AsyncLLMEngine, on whose loop it runs.
"""

from __future__ import annotations

import asyncio

from atom.errors import RequestError
from atom.lora_config import LoraModule
from atom.model_engine.control import CallCores, LoadLora, UnloadLora
from atom.model_engine.front.loras.adapter_digests import AdapterDigests, adapter_digest, unread
from atom.model_engine.front.loras.served_loras import ServedLoras


class LoraChanges:
    def __init__(
        self,
        loras: ServedLoras,
        call: CallCores,
        digests: AdapterDigests,
    ) -> None:
        """loras: the served adapters. call: asks every engine core for a utility, by its name and
        arguments. digests: of their weights."""
        self.loras = loras
        self._call = call
        self._digests = digests
        self._one = asyncio.Lock()

    async def load(self, module: LoraModule, *, in_place: bool = False) -> None:
        """Serve another adapter while requests run. in_place: replaces the adapter of its name,
        once loaded. Raises `RequestError` if it cannot be served, and as `call`."""
        async with self._one:
            self.loras.check_new(module, in_place=in_place)
            before = self.loras.get(module.name)
            lora = self.loras.numbered(module)
            number = lora.request.lora_int_id
            files = await asyncio.to_thread(adapter_digest, module.path)
            told = await self._call(LoadLora(number, module.path))
            refusal = next((each for each in told if each is not None), None)
            if refusal is not None:
                await self._call(UnloadLora(number))  # of ranks that have it
                raise RequestError(refusal, param="lora_path")
            now = await asyncio.to_thread(adapter_digest, module.path)
            self._digests.note(number, now if now == files else unread())  # which ones were read?
            self.loras.add(lora)
            if before is not None:
                await self._call(UnloadLora(before.request.lora_int_id))

    async def unload(self, name: str) -> None:
        """Serve an adapter to no more requests; open ones continue. Raises `RequestError` for an
        unknown one, and as `call`."""
        async with self._one:
            lora = self.loras.remove(name)
            await self._call(UnloadLora(lora.request.lora_int_id))
