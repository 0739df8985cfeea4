"""Pauses: calls during which no step runs: sleep, wake-up, and a change of weights. One at a time.

The first new request wakes up an engine that fell asleep while idle. Each call continues after its
caller has gone. Owned by AsyncLLMEngine, on whose loop all runs; EngineLifecycle decides which
calls are allowed and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from atom.config_values import ModelConfig, OpenRequestsMode, SleepLevel
from atom.errors import AtomError, EngineDeadError, RequestError
from atom.model_engine.control import CallCores, CheckWeights, Sleep, UpdateWeights, WakeUp
from atom.model_engine.front.engine_lifecycle import EngineLifecycle
from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.front.weights_update import (
    WeightsUpdate,
    find_update,
    version_of,
)


class Pauses:
    """Carry out pauses. weights_version: of the weights for requests that begin now.
    wakes_for_requests: how often a request woke the engine up."""

    def __init__(
        self,
        model: ModelConfig,
        lifecycle: EngineLifecycle,
        requests: OpenRequests,
        call: CallCores,
    ) -> None:
        self._model = model
        self._lifecycle = lifecycle
        self._requests = requests
        self._call = call
        self._one = asyncio.Lock()
        self._under_way: asyncio.Future[None]  # held, or it could be collected
        self.weights_version = version_of(model)
        self.wakes_for_requests = 0
        self._level: SleepLevel | None = None
        self._waking: asyncio.Future[None] | None = None  # for requests that are held

    @property
    def sleep_level(self) -> int:
        """Return the level at which the engine sleeps; 0 if it is awake."""
        return int(self._level or 0) if self._lifecycle.is_asleep else 0

    async def sleep(self, level: SleepLevel, mode: OpenRequestsMode) -> None:
        """Release the device's memory, as soon as `mode` allows. Raises `RequestError` (503) if the
        engine does not serve, and as `call`."""
        await self._carry_out(self._fall_asleep(level, mode))

    async def sleep_until_asked(self, idle_seconds: float) -> None:
        """Move the weights to the host's memory until a request arrives; do nothing if one is open.
        idle_seconds: since the last one. Raises as `sleep`."""
        await self._carry_out(self._doze(idle_seconds))

    async def wake_up(self) -> None:
        """Take the memory again and serve. Raises as `call`; then it sleeps on."""
        await self._carry_out(self._end_sleep())

    async def update_weights(
        self,
        model_path: str,
        *,
        version: str | None = None,
        mode: OpenRequestsMode = OpenRequestsMode.WAIT,
    ) -> str:
        """Compute by the weights of another checkpoint of the same shape, a folder or hub id; the
        new version, which is a digest unless `version` is given. Raises `RequestError` for one that
        cannot be, and nothing has changed, and as `call`."""
        await self._carry_out(self._update(model_path, version, mode))
        return self.weights_version

    async def _carry_out(self, pause: Coroutine[Any, Any, None]) -> None:
        self._under_way = asyncio.ensure_future(self._in_turn(pause))
        await asyncio.shield(self._under_way)  # even if the caller no longer waits

    async def _in_turn(self, pause: Coroutine[Any, Any, None]) -> None:
        async with self._one:
            await pause

    async def _fall_asleep(self, level: SleepLevel, mode: OpenRequestsMode) -> None:
        sleeps = self._lifecycle.is_asleep
        depth = self._level if sleeps else level
        self._lifecycle.fall_asleep(f"asleep at level {depth}; POST /wake_up wakes it up")
        if sleeps:
            return
        if mode is OpenRequestsMode.ABORT:
            self._abort_open("the server was put to sleep")
        await self._give_back(level, keep=mode is OpenRequestsMode.KEEP)

    async def _doze(self, idle_seconds: float) -> None:
        if len(self._requests) or self._lifecycle.is_asleep:
            return
        level = SleepLevel.WEIGHTS_ON_HOST
        reason = f"asleep at level {level} after {idle_seconds:g} s without a request"
        self._lifecycle.fall_asleep(f"{reason}; the next one wakes it up", self._wake_for_requests)
        await self._give_back(level)

    async def _give_back(self, level: SleepLevel, *, keep: bool = False) -> None:
        """Release the memory once no request is open, or at once with `keep`; an engine that fails
        to stays awake."""
        try:
            if not keep:
                await self._requests.wait_idle(None)
            await self._call(Sleep(int(level), keep))
            self._level = level
        except Exception:
            self._lifecycle.wake_up()
            raise

    async def _wake_for_requests(self) -> None:
        """Wake up once for all held requests. Raises `RequestError` (503) if that fails."""
        if self._waking is None or self._waking.done():
            self._waking = asyncio.ensure_future(self._in_turn(self._end_doze()))
        try:
            await asyncio.shield(self._waking)
        except EngineDeadError:
            raise
        except AtomError as error:
            raise RequestError(
                f"the engine sleeps and could not be woken up: {error}; try again soon", status=503
            ) from None

    async def _end_doze(self) -> None:
        if self._lifecycle.wakes_for_requests:
            await self._end_sleep()
            self.wakes_for_requests += 1

    async def _end_sleep(self) -> None:
        if self._lifecycle.is_asleep:
            await self._call(WakeUp())
            self._lifecycle.wake_up()

    async def _update(self, asked: str, version: str | None, mode: OpenRequestsMode) -> None:
        update = await asyncio.to_thread(find_update, self._model, asked, version, mode)
        await self._check(update)
        if mode is OpenRequestsMode.KEEP or self._lifecycle.is_asleep:
            await self._take(update)
            return
        self._lifecycle.hold("the model's weights change")
        try:
            if mode is OpenRequestsMode.ABORT:
                self._abort_open("the model's weights changed")
            await self._requests.wait_idle(None)
            await self._check(update)  # the files may have changed meanwhile
            await self._take(update)
        finally:
            self._lifecycle.release()

    async def _check(self, update: WeightsUpdate) -> None:
        """Ask every copy of the model before any copy takes the weights: a copy that refused them
        after another took them would answer differently. Raises `RequestError` for a refusal."""
        for refusal in await self._call(CheckWeights(str(update.path))):
            if refusal is not None:
                raise RequestError(f"model_path: {refusal}", param="model_path")

    async def _take(self, update: WeightsUpdate) -> None:
        await self._call(UpdateWeights(str(update.path)))
        self.weights_version = update.version

    def _abort_open(self, why: str) -> None:
        message = f"{why} before the answer was complete"
        self._requests.fail_all(lambda: RequestError(message, status=503))
