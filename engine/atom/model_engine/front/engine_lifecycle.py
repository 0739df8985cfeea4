"""EngineLifecycle: whether the engine can serve, and if not, why; from its start to its end.

The decisions of one small state machine and the waiters for them; it knows no requests and no
sockets. Owned by AsyncLLMEngine, which hands it the core's events; belongs to the loop that made
its waiters.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from atom.errors import EngineDeadError, RequestError
from atom.model_engine.wire.core_port import (
    CoreEvent,
    CoreReached,
    CoreResumed,
    CoreStalled,
    CoreUnreachable,
)
from atom.model_engine.wire.engine_protocol import EngineReport, ProgressBody

logger = logging.getLogger(__name__)


class EngineState(enum.StrEnum):
    """Name the engine's states. STALLED: a rank has been silent for too long; UNREACHABLE: a remote
    engine does not answer. Both become READY again if that ends."""

    STARTING = "starting"
    READY = "ready"
    ASLEEP = "asleep"
    STALLED = "stalled"
    UNREACHABLE = "unreachable"
    DRAINING = "draining"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The state of the engine. reason: for people, why it does not serve; empty when it does.
    report: once it was ready."""

    state: EngineState
    reason: str = ""
    report: EngineReport | None = None


class EngineLifecycle:
    """STARTING → READY ⇄ STALLED, UNREACHABLE or ASLEEP; DRAINING from any of them; DEAD from all,
    and for good."""

    def __init__(
        self,
        on_progress: Callable[[str, float], None] | None = None,
        *,
        holds_requests: bool = False,
    ) -> None:
        """on_progress: called with the phase of start-up and its share done. holds_requests: new
        requests wait while the engine is asleep."""
        self._holds_requests = holds_requests
        self._waker: Callable[[], Awaitable[None]] | None = None
        self.status = EngineStatus(EngineState.STARTING, "starting the engine process")
        self._on_progress = on_progress
        self._stalled: dict[int, str] = {}  # rank → its fault
        self._woke = asyncio.Event()  # since it fell asleep, or since `hold`
        self._holds_because = ""  # requests that come, although it serves; empty for no reason
        self._decided = asyncio.Event()  # start-up has ended, one way or the other
        self._died = asyncio.Event()
        self._maimed = asyncio.Event()
        self._lost_part = ""  # the lost part, once there is one
        self._shut_down = False

    @property
    def is_dead(self) -> bool:
        return self._shut_down or self.status.state is EngineState.DEAD

    @property
    def is_asleep(self) -> bool:
        return self.status.state is EngineState.ASLEEP

    # ---- events -------------------------------------------------------------------------------

    def note(self, event: CoreEvent) -> None:
        """Update the state from a core's event; events about requests are ignored."""
        if isinstance(event, CoreStalled):
            self.stall(event)
        elif isinstance(event, CoreResumed):
            self.resume(event)
        elif isinstance(event, CoreUnreachable | CoreReached):
            self._show_reach(event)
        elif isinstance(event, EngineReport):
            self.started(event)
        elif isinstance(event, ProgressBody):
            self.progress(event)

    def progress(self, news: ProgressBody) -> None:
        if self.status.state is not EngineState.STARTING:
            return
        reason = f"{news.phase} {news.fraction:.0%}"
        self.status = EngineStatus(EngineState.STARTING, reason)
        if self._on_progress is not None:
            self._on_progress(news.phase, news.fraction)

    def started(self, report: EngineReport) -> None:
        """Record the report of start-up. A drain that began during start-up keeps its state."""
        if self.status.state is EngineState.STARTING:
            self.status = EngineStatus(EngineState.READY, report=report)
            self._decided.set()
        else:
            self.status = replace(self.status, report=report)

    def stall(self, event: CoreStalled) -> None:
        """Record a stalled rank. Open requests stay: their rank may recover, and other ranks
        continue."""
        reason = f"rank {event.rank} has computed nothing for {event.silent_seconds:.0f} s"
        logger.error("the engine is stalled: %s", reason)
        self._stalled[event.rank] = reason
        self._show_stalls()

    def resume(self, event: CoreResumed) -> None:
        self._stalled.pop(event.rank, None)
        logger.warning("rank %d gets on again", event.rank)
        self._show_stalls()

    def _show_stalls(self) -> None:
        if self.status.state not in (EngineState.READY, EngineState.STALLED):
            return  # draining or dead, which is more specific
        state = EngineState.STALLED if self._stalled else EngineState.READY
        reason = "; ".join(self._stalled.values())
        self.status = replace(self.status, state=state, reason=reason)

    def _show_reach(self, event: CoreUnreachable | CoreReached) -> None:
        """Record whether the engine can be reached. Open requests stay: each learns its own
        fate."""
        if self.status.state not in (EngineState.READY, EngineState.UNREACHABLE):
            return
        if isinstance(event, CoreUnreachable):
            logger.error("requests cannot be computed: %s", event.reason)
            self.status = replace(self.status, state=EngineState.UNREACHABLE, reason=event.reason)
        else:
            logger.warning("requests can be computed again")
            self.status = replace(self.status, state=EngineState.READY, reason="")

    def fall_asleep(self, reason: str, waker: Callable[[], Awaitable[None]] | None = None) -> None:
        """Mark the engine asleep, its device memory free for others. waker: awaited for new
        requests; None if they do not wake it. Raises as `check_serving`, unless it is asleep
        already."""
        if not self.is_asleep:
            self.check_awake()
        self._woke.clear()
        self._waker = waker
        self.status = replace(self.status, state=EngineState.ASLEEP, reason=reason)

    def wake_up(self) -> None:
        """Serve again."""
        if self.status.state is EngineState.ASLEEP:
            self.status = replace(self.status, state=EngineState.READY, reason="")
        self._woke.set()

    def hold(self, reason: str) -> None:
        """Let requests that come wait until `release`, whatever else is so."""
        self._woke.clear()
        self._holds_because = reason

    def release(self) -> None:
        """Let held requests continue."""
        self._holds_because = ""
        self._woke.set()

    @property
    def held_because(self) -> str:
        """Return why new requests have to wait; empty if they need not."""
        if self.is_asleep:
            return self.status.reason
        return "" if self.is_ending else self._holds_because

    @property
    def holds_asleep(self) -> bool:
        """Return whether the engine sleeps and holds new requests, which wait for a wake-up or
        cause one."""
        return self.is_asleep and (self._holds_requests or self._waker is not None)

    @property
    def wakes_for_requests(self) -> bool:
        """Return whether the engine sleeps until a request arrives."""
        return self.is_asleep and self._waker is not None

    @property
    def is_ending(self) -> bool:
        """Return whether the engine will never take a request again."""
        return self.is_dead or self.status.state is EngineState.DRAINING

    def begin_drain(self, reason: str = "the server is shutting down") -> None:
        """Take no more requests; the first reason counts."""
        if not self.is_dead and self.status.state is not EngineState.DRAINING:
            self.status = replace(self.status, state=EngineState.DRAINING, reason=reason)
            self._woke.set()

    def maim(self, reason: str) -> None:
        """Record the loss of a part that does not return: open requests finish, then the engine
        ends."""
        if self.is_dead or self._lost_part:
            return
        what_follows = f"{reason}; open answers are finished, and then the server ends"
        logger.error("%s", what_follows)
        self._lost_part = reason
        self.begin_drain(what_follows)
        self._maimed.set()

    def shut_down(self) -> None:
        """Begin the end that was asked for; a client still hears why no request is taken."""
        self.begin_drain()
        self._shut_down = True
        self._decided.set()
        self._died.set()

    def die(self, reason: str) -> bool:
        """Return whether this is the end; the first reason counts."""
        if self.is_dead:
            return False
        self.status = replace(self.status, state=EngineState.DEAD, reason=reason)
        self._woke.set()
        self._decided.set()
        self._died.set()
        return True

    def gone(self) -> None:
        """Record that the requested end is complete."""
        if self.status.state is not EngineState.DEAD:
            reason = "the engine was shut down"
            self.status = replace(self.status, state=EngineState.DEAD, reason=reason)

    # ---- waiters ------------------------------------------------------------------------------

    async def wait_ready(self) -> EngineReport:
        """Return the start-up report. Raises `EngineDeadError` if start-up failed."""
        await self._decided.wait()
        if self.status.report is None:
            raise EngineDeadError(self.status.reason)
        return self.status.report

    async def wait_awake(self) -> None:
        """Wait until requests are not held any more, whatever happens to them instead. Wakes up an
        engine that requests wake; raises as its waker."""
        while self.held_because and (self.holds_asleep or not self.is_asleep):
            if self._waker is not None and self.is_asleep:
                await self._waker()
            else:
                await self._woke.wait()

    async def wait_woken(self) -> None:
        """Returns as `wait_awake`, and wakes nothing up."""
        while self.held_because:
            await self._woke.wait()

    async def wait_dead(self) -> str:
        """Returns the reason once the engine process is gone."""
        await self._died.wait()
        return self.status.reason

    async def wait_maimed(self) -> str:
        """Wait until a part of the engine is gone for good while others continue; return the
        reason."""
        await self._maimed.wait()
        return self._lost_part

    def check_serving(self) -> None:
        """Raise the error that explains why a request cannot be taken now, if there is one."""
        if not self.holds_asleep:
            self.check_awake()

    def check_awake(self) -> None:
        """Raises as `check_serving`, also while requests are held."""
        if self.is_dead:
            raise EngineDeadError(self.status.reason)
        if self.status.state is not EngineState.READY:
            raise RequestError(
                f"the engine is {self.status.state}: {self.status.reason}; try again soon",
                status=503,
            )
