"""CoreManager: one client of the engine cores — routes requests to ranks, fans their outputs in.

Torch-free; lives in an API server process (or the offline LLMEngine). Given a config alone it also
owns the cores: starts a process per data-parallel rank, tells when one dies, ends them. Given an
attachment it talks to cores that another process owns. Sockets are ipc files in a folder that only
this user can enter, and ports for cores of other nodes. Events are delivered from the manager's own
thread.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import zmq

from atom.config import Config
from atom.errors import ConfigError
from atom.model_engine.request import Request
from atom.model_engine.wire.core_port import (
    CoreEvent,
    CoreFailed,
    CoreLost,
    CoreResumed,
    CoreStalled,
)
from atom.model_engine.wire.core_processes import CoreProcesses
from atom.model_engine.wire.core_sockets import ClientAddress, has_message, open_socket
from atom.model_engine.wire.engine_protocol import (
    AbortBody,
    AbortClientBody,
    AddBody,
    EngineReport,
    ExecutorFailedBody,
    ProgressBody,
    RankStats,
    ShutdownBody,
    StreamBody,
    UtilityBody,
    UtilityResponseBody,
    decode_from_rank,
    encode,
    identity_of,
)
from atom.model_engine.wire.expert_parallel_cores import ExpertParallelCores
from atom.model_engine.wire.first_loss import LastWords
from atom.model_engine.wire.heartbeat import HeartbeatWatch
from atom.model_engine.wire.node_ports import listen_to_nodes
from atom.model_engine.wire.other_nodes import ClientPorts
from atom.model_engine.wire.rank_answers import RankAnswers
from atom.model_engine.wire.request_router import RequestRouter
from atom.model_engine.wire.request_size import parts_of
from atom.utils.socket_folder import make_socket_folder

logger = logging.getLogger(__name__)

_LOST = b"lost"  # before a LastWords, for the output thread
_STARTING_POLL_SECONDS = 0.05
_LAST_MESSAGE_SECONDS = 1.0  # for a failing core's message to arrive after the news of its end


class CoreManager:
    """All ranks of one engine behind their sockets.

    EngineReport, ProgressBody and UtilityResponseBody are the whole engine's (rank_answers.py).
    `on_event` is called from the manager's thread and must not block; after CoreFailed, or once
    `shutdown` was called, it is not called again.
    """

    def __init__(
        self,
        config: Config,
        on_event: Callable[[CoreEvent], None],
        *,
        attachment: ClientAddress | None = None,
        clients: int = 1,
    ) -> None:
        """attachment: which client of another process' cores this is; None to own the cores as
        client 0. clients: how many there will be, for an owner. Raises `ConfigError`. Of `ports`,
        which are for cores of other nodes, the owner is to hear by its `client_listens`."""
        ranks = config.parallel.data_parallel_size
        self._config = config
        self._on_event = on_event
        self._owns = attachment is None
        self.address = attachment or ClientAddress(make_socket_folder("atom-"), 0)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._lock = threading.Lock()  # of the router and of the requests' socket
        # A core sends one message this way, and after READY nothing reads it any more.
        self._requests = self._bind(zmq.ROUTER, self.address.requests, most_unread=4)
        self._outputs = self._bind(zmq.PULL, self.address.outputs, most_unread=0)
        # Wakes the output thread: b"" to stop, else the loss of a rank or an encoded failure.
        self._wake_reader = self._context.socket(zmq.PULL)
        self._wake_reader.bind("inproc://wake")
        self._router = RequestRouter(
            ranks, config.parallel.data_parallel_routing, first_rank=self.address.client
        )
        self._answers = RankAnswers(ranks)
        self._watch: HeartbeatWatch | None = None  # from READY on
        self._lost: set[int] = set()
        self._loss_told = threading.Condition()
        self.ports: ClientPorts | None = None  # None where all cores are on this machine
        if config.parallel.spans_cores:
            self.ports = listen_to_nodes(self._requests, self._outputs)
        try:
            self._cores = self._own_cores(clients) if self._owns else None
        except ConfigError:
            self._release()
            raise
        self._thread = threading.Thread(target=self._run, name="core-output", daemon=True)
        self._closing = threading.Event()

    def _own_cores(self, clients: int) -> CoreProcesses | ExpertParallelCores:
        folder = self.address.folder
        endpoints = [ClientAddress(folder, client).endpoints for client in range(clients)]
        if self.ports is None:
            return CoreProcesses(self._config, endpoints, self._on_core_exit)
        cores = ExpertParallelCores(self._config, endpoints, self._on_core_exit)
        cores.listens(self.address.client, self.ports)
        return cores

    def _bind(self, kind: int, address: str, *, most_unread: int) -> zmq.Socket[bytes]:
        """Bind a socket that keeps `most_unread` messages of one sender; 0 for any number."""
        socket = open_socket(self._context, kind)
        socket.setsockopt(zmq.RCVHWM, most_unread)
        socket.bind(address)
        return socket

    # ---- calls --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the cores, or begin to listen to them; READY or CoreFailed follows as an event."""
        self._thread.start()
        if self._cores is not None:
            self._cores.start()

    def client_listens(self, client: int, ports: ClientPorts) -> None:
        """Note where cores of other nodes find another client of an owner's cores: they wait for
        it."""
        if isinstance(self._cores, ExpertParallelCores):
            self._cores.listens(client, ports)

    @property
    def process_ids(self) -> list[int]:
        """List the process ids of this machine's cores, by rank."""
        return [] if self._cores is None else self._cores.process_ids

    def add_requests(self, requests: Sequence[Request]) -> None:
        with self._lock:
            placed: dict[int, list[Request]] = {}
            for request in requests:
                placed.setdefault(self._router.place(request), []).append(request)
            for rank, mine in placed.items():
                for part in parts_of(mine):
                    self._send(rank, AddBody(requests=part))

    def abort_requests(self, request_ids: Sequence[int]) -> None:
        """Abort requests; ended ones are ignored."""
        with self._lock:
            for rank, mine in self._router.by_rank(request_ids).items():
                self._send(rank, AbortBody(request_ids=mine))

    def abort_client(self, client: int) -> None:
        """Abort the open requests of another client of these cores that is gone."""
        self._send_all(AbortClientBody(client=client))

    def call_utility(self, call_id: int, method: str, args: Sequence[Any] = ()) -> None:
        """Ask every core to run a utility. One UtilityResponseBody event brings the answer: a list
        of the ranks' results, or the error of the failed ones."""
        self._send_all(UtilityBody(call_id=call_id, method=method, args=list(args)))

    def shutdown(self, timeout_seconds: float = 10.0) -> None:
        """Let go of the cores; an owner asks them to end, then makes them. May be called again."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._cores is not None:
            self._cores.close()
            self._send_all(ShutdownBody())
            self._cores.stop(timeout_seconds)
        if self._thread.is_alive():
            self._wake(b"")
            self._thread.join()
        self._release()

    def _release(self) -> None:
        for socket in (self._requests, self._outputs, self._wake_reader):
            socket.close(linger=0)
        self._context.term()
        if self._owns:
            shutil.rmtree(self.address.folder, ignore_errors=True)

    # ---- sending (with the lock) --------------------------------------------------------------

    def _send_all(self, body: UtilityBody | AbortClientBody | ShutdownBody) -> None:
        with self._lock:
            for rank in range(self._config.parallel.data_parallel_size):
                self._send(rank, body)

    def _send(self, rank: int, body: msgspec.Struct) -> None:
        # A ROUTER drops unroutable messages; a dead core is reported by its process' end.
        self._requests.send_multipart([identity_of(rank), *encode(body)])

    # ---- the output thread --------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._outputs, zmq.POLLIN)
        poller.register(self._wake_reader, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(self._poll_milliseconds()))
            if not all(self._deliver(frames) for frames in self._arrived()):
                return
            if self._wake_reader in ready:
                reason = self._wake_reader.recv()
                if not reason.startswith(_LOST) or not self._go_on_without(reason):
                    self._end(reason)
                    return
            self._report_stalls()

    def _poll_milliseconds(self) -> int | None:
        if self._watch is None:
            return int(_STARTING_POLL_SECONDS * 1000)
        seconds = self._watch.seconds_to_next(time.monotonic())
        return None if seconds is None else int(seconds * 1000) + 1

    def _arrived(self) -> Iterator[list[bytes]]:
        """Every message that is there. READY comes by the requests' socket, which thereby learns
        the way to the core; it is read by turns with the senders, and not at all once all are
        ready."""
        while self._watch is None:
            with self._lock:
                if not has_message(self._requests):
                    break
                frames = self._requests.recv_multipart()
            yield frames
        while has_message(self._outputs):
            yield self._outputs.recv_multipart()

    def _deliver(self, frames: list[bytes]) -> bool:
        """Hand one message on; False after the last one."""
        try:
            rank, body = decode_from_rank(frames, self._config.parallel.data_parallel_size)
        except ValueError as error:
            logger.warning("refused a malformed message: %s", error)
            return True
        if self._closing.is_set():
            return True
        if isinstance(body, ExecutorFailedBody) and self._can_lose(rank):
            self._tell_lost(rank, self._named(rank, body.message))
            return True
        event = self._event_of(rank, body)
        if isinstance(event, CoreFailed):
            self._tell_failed(event)
            return False
        if event is not None:
            self._on_event(event)
        return True

    def _event_of(self, rank: int, body: msgspec.Struct) -> CoreEvent | None:
        if isinstance(body, StreamBody):
            if body.finished:
                with self._lock:
                    for row in body.finished:
                        self._router.release(row.request_id)
            return body
        if isinstance(body, RankStats):
            self._hear(rank)
            return body
        if isinstance(body, UtilityResponseBody):
            return self._answers.utility(rank, body)
        if isinstance(body, ProgressBody):
            return self._answers.progress(rank, body)
        if isinstance(body, EngineReport):
            return self._ready(rank, body)
        if isinstance(body, ExecutorFailedBody):
            return CoreFailed(self._named(rank, body.message), body.user_error)
        logger.warning("ignored a %s: not for a client", type(body).__name__)
        return None

    def _ready(self, rank: int, body: EngineReport) -> EngineReport | None:
        report = self._answers.ready(rank, body)
        if report is not None:
            ranks, health = self._config.parallel.data_parallel_size, self._config.health
            self._watch = HeartbeatWatch(ranks, health.stall_seconds, time.monotonic())
        return report

    def _named(self, rank: int, message: str) -> str:
        many = self._config.parallel.data_parallel_size > 1
        return f"rank {rank}: {message}" if many else message

    # ---- life and death of cores --------------------------------------------------------------

    def _hear(self, rank: int) -> None:
        if self._watch is not None and self._watch.hear(rank, time.monotonic()):
            self._on_event(CoreResumed(rank))

    def _report_stalls(self) -> None:
        if self._watch is None or self._closing.is_set():
            return
        now = time.monotonic()
        for rank in self._watch.newly_stalled(now):
            self._on_event(CoreStalled(rank, self._watch.silent_seconds(rank, now)))

    def lose_rank(self, rank: int, message: str) -> None:
        """Go on without a rank whose process has ended; where that cannot be, CoreFailed is the
        next event."""
        if not self._closing.is_set():
            words = LastWords(message, user_error=False, rank=rank)
            self._wake(_LOST + msgspec.msgpack.encode(words))

    def _can_lose(self, rank: int) -> bool:
        """Return whether others serve on without this rank: copies of the whole model do, once they
        have started; ranks that share experts compute each other's tokens."""
        parallel = self._config.parallel
        left = parallel.data_parallel_size - len(self._lost | {rank})
        return left > 0 and not parallel.shares_experts and self._watch is not None

    def _go_on_without(self, reason: bytes) -> bool:
        """Return, on the output thread, whether the other cores continue without a lost one."""
        words = msgspec.msgpack.decode(reason.removeprefix(_LOST), type=LastWords)
        if words.rank is None or not self._can_lose(words.rank):
            return False
        self._tell_lost(words.rank, words.message)
        return True

    def _tell_lost(self, rank: int, message: str) -> None:
        """Report a rank's loss once: its core may announce its end before it ends."""
        if rank in self._lost:
            return
        with self._lock:
            served = self._router.lose(rank)
        if self._watch is not None:
            self._watch.forget(rank)
        self._on_event(CoreLost(rank, message, served))
        for answer in self._answers.lose(rank):
            self._on_event(answer)
        with self._loss_told:
            self._lost.add(rank)
            self._loss_told.notify_all()

    def fail(self, message: str) -> None:
        """Make CoreFailed the next event: something that the engine needs is gone."""
        if not self._closing.is_set():
            self._wake(encode(ExecutorFailedBody(message=message, user_error=False))[1])

    def _on_core_exit(self, words: LastWords) -> None:
        rank = words.rank
        if words.said and self._thread.is_alive():
            # That message may still be on its way.
            if rank is not None and self._can_lose(rank):
                with self._loss_told:
                    self._loss_told.wait_for(lambda: rank in self._lost, _LAST_MESSAGE_SECONDS)
            else:
                self._thread.join(_LAST_MESSAGE_SECONDS)
        if rank is None:
            self.fail(words.message)
        else:
            self.lose_rank(rank, words.message)

    def _wake(self, reason: bytes) -> None:
        with self._context.socket(zmq.PUSH) as socket:
            socket.setsockopt(zmq.LINGER, 1000)
            socket.connect("inproc://wake")
            socket.send(reason)

    def _end(self, reason: bytes) -> None:
        if not reason or self._closing.is_set():
            return
        if reason.startswith(_LOST):
            words = msgspec.msgpack.decode(reason.removeprefix(_LOST), type=LastWords)
            self._tell_failed(CoreFailed(words.message, words.user_error))
        else:
            failure = msgspec.msgpack.decode(reason, type=ExecutorFailedBody)
            self._tell_failed(CoreFailed(failure.message, failure.user_error))

    def _tell_failed(self, failed: CoreFailed) -> None:
        """Send the last event, on every node."""
        if isinstance(self._cores, ExpertParallelCores):
            self._cores.give_reason(failed.message)
        self._on_event(failed)
