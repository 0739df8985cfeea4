"""NixlAgent: reads the memory of other engines through NIXL, over RDMA or another way of UCX.

A producer registers the memory of a ring and tells its address with the agent's metadata; a
consumer registers as much memory, and reads each page from there by one READ. Who reads is told
and checked by frames, as for every transport: NIXL moves bytes alone. The package is optional and
imported here only. Belongs to the side channel's thread, except while it is built.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import logging
import mmap
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from atom.kv_transfer_config.nixl_package import NIXL_REMEDY, nixl_package
from atom.model_engine.kv_transfer.frames import Registered
from atom.model_engine.kv_transfer.page_ring import HostRing, PageWindow

logger = logging.getLogger(__name__)

MOST_WINDOWS = 16  # of one engine; further producers send pages behind their frames
_BACKEND = "UCX"
_LEVEL = "NIXL_LOG_LEVEL"
_MEMORY = "DRAM"
_AT_WORK = "PROC"
_DONE = "DONE"
_LOOK_SECONDS = 0.0002  # between looks at a read that is under way


class NixlError(OSError):
    """Raised if NIXL is not there, or fails at a call."""


class NixlAgent:
    """Register memory with NIXL, and read other engines'. name: unique among all engines; serves:
    others read its memory, which a thread of NIXL's helps with. Raises `NixlError`."""

    def __init__(self, name: str, *, serves: bool = True) -> None:
        package = nixl_package()
        if package is None:
            raise NixlError(f"NIXL is not installed; {NIXL_REMEDY}")
        try:
            api = importlib.import_module(f"{package}._api")
            if _LEVEL not in os.environ:  # it would tell of each start on standard output
                logging.getLogger("nixl").setLevel(logging.WARNING)
            config = api.nixl_agent_config(serves, False, 0, backends=[_BACKEND])
            self._agent: Any = api.nixl_agent(name, config)
        except Exception as error:  # of foreign code: a library that is missing, or no memory
            raise NixlError(f"NIXL ({package}) cannot start: {error!r}; {NIXL_REMEDY}") from error
        self._peers: Counter[str] = Counter()  # windows by the agents that they read from
        self._lost: list[tuple[mmap.mmap, Any]] = []  # memory that a read may still write to

    @property
    def has_room(self) -> bool:
        """Return whether another producer may be read from."""
        return self._peers.total() + len(self._lost) < MOST_WINDOWS

    def offer(self, ring: HostRing) -> tuple[Registered, Any]:
        """Register the memory of a ring; returns its address for a consumer, and the descriptors
        for `withdraw`."""
        memory = ring.memory
        with _foreign("registered memory"):
            descriptors = self._register(memory)
            metadata = self._agent.get_partial_agent_metadata(descriptors, True, [_BACKEND])
        return Registered(metadata, _address(memory), len(memory)), descriptors

    def stop(self) -> None:
        """End the agent and its thread."""
        self._agent = None

    def withdraw(self, descriptors: Any) -> None:
        """Stop reads of a ring by its consumer."""
        if self._agent is None:
            return
        with contextlib.suppress(NixlError), _foreign("withdrawn memory"):
            self._agent.deregister_memory(descriptors)

    def open(self, registered: Registered, most_bytes: int) -> RemoteWindow:
        """Prepare to read a ring. most_bytes: that it may have. Raises `NixlError`."""
        if not self.has_room:
            raise NixlError(f"pages of {MOST_WINDOWS} producers are read already")
        if not 0 < registered.size <= most_bytes:
            raise NixlError(f"memory of {registered.size} bytes; at most {most_bytes} are read")
        memory = mmap.mmap(-1, registered.size)
        with _foreign("read from another engine's memory"):
            descriptors = self._register(memory)
            try:
                peer = self._agent.add_remote_agent(registered.agent)
            except Exception:
                self._agent.deregister_memory(descriptors)
                raise
        name = peer.decode() if isinstance(peer, bytes) else str(peer)
        self._peers[name] += 1
        return RemoteWindow(self, name, registered, memory, descriptors)

    async def read(self, window: RemoteWindow, at: int, size: int) -> None:
        """Copy bytes from a place of a producer's ring to that place of a window. Raises
        `NixlError`."""
        agent = self._agent
        with _foreign("read a page"):
            own, theirs = (
                agent.get_xfer_descs([(base + at, size, 0)], _MEMORY) for base in window.addresses
            )
            handle = agent.initialize_xfer("READ", own, theirs, window.peer)
            try:
                state = agent.transfer(handle)
                while state == _AT_WORK:
                    await asyncio.sleep(_LOOK_SECONDS)
                    state = agent.check_xfer_state(handle)
            finally:
                self._release(handle, window)
        if state != _DONE:
            raise NixlError(f"NIXL could not read a page: {state}")

    def close(self, window: RemoteWindow) -> None:
        """Give a window's memory back, unless a read may still write to it."""
        self._peers[window.peer] -= 1
        memory, descriptors = window.held
        if window.is_written:
            self._lost.append((memory, descriptors))
            logger.warning("kv transfer: NIXL keeps %d bytes of a lost producer", len(memory))
        else:
            self.withdraw(descriptors)
        if not self._peers[window.peer] and self._agent is not None:
            del self._peers[window.peer]
            with contextlib.suppress(NixlError), _foreign("forgotten an engine"):
                self._agent.remove_remote_agent(window.peer)

    def _register(self, memory: mmap.mmap) -> Any:
        return self._agent.register_memory([(_address(memory), len(memory), 0, "")], _MEMORY)

    def _release(self, handle: Any, window: RemoteWindow) -> None:
        """Release a read, and stop it if it is under way."""
        try:
            self._agent.release_xfer_handle(handle)
        except Exception:
            window.is_written = True
            logger.exception("kv transfer: NIXL could not stop a read")


class RemoteWindow(PageWindow):
    """The consumer's end of a ring of another machine: as much memory here, where each page is read
    to its place. peer: the producer's agent; is_written: a read could not be stopped."""

    def __init__(
        self,
        agent: NixlAgent,
        peer: str,
        registered: Registered,
        memory: mmap.mmap,
        descriptors: Any,
    ) -> None:
        super().__init__(memoryview(memory))
        self.peer = peer
        self.is_written = False
        self.addresses = _address(memory), registered.address
        self.held = memory, descriptors
        self._agent = agent

    async def fetch(self, position: int, size: int) -> None:
        """Read the bytes of a page that `page` returned. Raises `NixlError`."""
        await self._agent.read(self, self.place_of(position), size)

    def close(self) -> None:
        """Read nothing more; pages stay readable until they are used."""
        self._agent.close(self)


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@contextlib.contextmanager
def _foreign(did: str) -> Iterator[None]:
    """Turn the errors of NIXL's calls, which have no common class, into `NixlError`."""
    try:
        yield
    except (NixlError, asyncio.CancelledError):
        raise
    except Exception as error:
        raise NixlError(f"NIXL could not have {did}: {error!r}") from error
