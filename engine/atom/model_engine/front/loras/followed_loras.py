"""FollowedLoras: the adapters that `--lora-modules-file` names, loaded and unloaded as it changes.

Level-based: each turn compares the file with the served adapters, whatever happened before. An
adapter that cannot be served is reported in the engine's words and retried, ever more rarely; the
others and the model are served meanwhile. Run by HttpProcess; the file is read as a mounted
ConfigMap is, which changes as a whole.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from atom.errors import AtomError, ConfigError, RequestError
from atom.lora_config import LoraModule, read_modules_file
from atom.model_engine.front.loras.served_loras import ServedLora

_LOOK_SECONDS = 1.0
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 5.0, 300.0
logger = logging.getLogger(__name__)


class _Adapters(Protocol):
    @property
    def loras(self) -> Iterable[ServedLora]: ...

    async def load(self, module: LoraModule, *, in_place: bool = False) -> None: ...

    async def unload(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Record why an adapter is not served, and when to retry."""

    module: LoraModule
    message: str
    due: float
    pause_seconds: float


class FollowedLoras:
    """Keeps an engine's adapters as a file says. model_names: that no adapter may have;
    `monotonic` is a clock in seconds."""

    def __init__(
        self,
        file: Path,
        adapters: _Adapters,
        model_names: tuple[str, ...],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._adapters = adapters
        self._model_names = model_names
        self._monotonic = monotonic
        self._asked: tuple[LoraModule, ...] = ()
        self._refusals: dict[str, _Refusal] = {}
        self._complaint = ""

    async def follow(self) -> None:
        """Take a turn about every second, for ever."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.turn()
            except AtomError as error:  # a dead engine is reported elsewhere
                logger.warning("adapters stay as they are for now: %s", error)

    async def turn(self) -> None:
        """Load and unload adapters until the served ones match the file. Raises
        `EngineDeadError`."""
        self._look()
        asked = {module.name: module for module in self._asked}
        for name in [lora.name for lora in self._adapters.loras]:
            if name not in asked:
                await self._adapters.unload(name)
                logger.info("adapter %s is served no more", name)
        for name, refusal in list(self._refusals.items()):
            if asked.get(name) != refusal.module:
                del self._refusals[name]
        for module in self._asked:
            refused = self._refusals.get(module.name)
            due = refused is None or self._monotonic() >= refused.due
            if due and self._roots().get(module.name) != module.path:
                await self._load(module, refused)

    def told(self) -> list[dict[str, Any]]:
        """Describe for /server_info each adapter that the file names."""
        roots = self._roots()
        return [self._state(module, roots.get(module.name)) for module in self._asked]

    def _state(self, module: LoraModule, root: str | None) -> dict[str, Any]:
        state, message = "loading", ""
        refused = self._refusals.get(module.name)
        if root == module.path:
            state = "loaded"
        elif refused is not None:
            state, message = "refused", refused.message
            if root is not None:
                message += f"; requests still get {root}"
        return {"name": module.name, "path": module.path, "state": state, "message": message}

    async def _load(self, module: LoraModule, before: _Refusal | None) -> None:
        try:
            if module.name in self._model_names:
                raise RequestError(f"{module.name} is the model's own name; give it another")
            await self._adapters.load(module, in_place=True)
        except RequestError as error:
            pause = _FIRST_PAUSE_SECONDS
            if before is not None:
                pause = min(2 * before.pause_seconds, _LAST_PAUSE_SECONDS)
            due = self._monotonic() + pause
            self._refusals[module.name] = _Refusal(module, str(error), due, pause)
            if before is None or before.message != str(error):
                logger.warning("adapter %s is not served: %s", module.name, error)
            return
        self._refusals.pop(module.name, None)
        logger.info("adapter %s is served, from %s", module.name, module.path)

    def _roots(self) -> dict[str, str]:
        return {lora.name: lora.root for lora in self._adapters.loras}

    def _look(self) -> None:
        """Read the file; its last valid content counts while it cannot be read."""
        try:
            self._asked, complaint = read_modules_file(self._file), ""
        except ConfigError as error:
            complaint = str(error)
        if complaint and complaint != self._complaint:
            logger.warning("the adapters from before still count: %s", complaint)
        self._complaint = complaint
