"""ExpertParallelExecutor: a core's runner whose experts are shared with other cores' runners.

Each core has its own scheduler, sequences and cache (data parallelism), and the layers' experts are
divided: so all run the same steps, with different rows. The cores agree on a step's common size
before it (dp_token_counts.py); a core without rows only computes its experts for the others'
tokens.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from atom.collectives.torch_group import LOOPBACK, Place, TorchGroup, find_store, open_store
from atom.config import Config
from atom.errors import AtomError
from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput, TokenMask
from atom.model_engine.executor.base import GroupEndedError
from atom.model_engine.executor.expert_parallel.dp_token_counts import DPTokenCounts
from atom.model_engine.executor.single import SingleDeviceExecutor
from atom.model_engine.model_runner import ModelRunner
from atom.model_engine.runner.cuda_graphs.graph_parts import bucket_sizes
from atom.model_engine.runner.expert_load_balancer import ExpertLoadBalancer
from atom.model_engine.runner.rank_device import rank_device
from atom.model_engine.runner.step_graphs import Progress
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.model_engine.wire.first_loss import OnFailure
from atom.model_engine.wire.peer_mesh import MeshOrder, PeerLeftError, PeerLostError, PeerMesh
from atom.model_ops.expert_parallel.eplb import ExpertLoad
from atom.utils.listening import is_loopback

logger = logging.getLogger(__name__)

_NEWS_SECONDS = 1.0  # for the server to detect an end itself, and report the reason


class PeerWatch:
    """Detect a peer's end on a separate thread, whatever the core's thread waits for."""

    def __init__(self, mesh: PeerMesh, on_failure: OnFailure) -> None:
        """on_failure: called for an unexpected end; it must end this process."""
        self._mesh = mesh
        self._on_failure = on_failure
        self._lost = threading.Event()
        self._closing = False

    def start(self) -> None:
        """Watch from here on."""
        threading.Thread(target=self._run, name="peers", daemon=True).start()

    def has_lost(self) -> bool:
        """Return whether a peer is gone, or is in a moment: an error that its end makes may come
        first."""
        return self._lost.wait(_NEWS_SECONDS)

    def wait_end(self) -> None:
        """Block until `on_failure` ends this process with its reason; never returns."""
        threading.Event().wait()

    def end(self) -> None:
        """Stop counting peers' ends as failures."""
        self._closing = True

    def notice(self) -> None:
        """Record the end of a peer's process, in order or not."""
        self._lost.set()

    def judge(self, peer: int) -> None:
        """Report a peer's end, unless it was in order or this rank is closing too."""
        if not self._closing and not self._mesh.has_left(peer):
            self._on_failure(str(PeerLostError(peer)), False)

    def _run(self) -> None:
        peer = self._mesh.wait_lost()
        self.notice()
        time.sleep(_NEWS_SECONDS)
        self.judge(peer)


class ExpertParallelExecutor(SingleDeviceExecutor):
    def __init__(
        self, config: Config, runner: ModelRunner, group: TorchGroup, mesh: PeerMesh,
        watch: PeerWatch,
    ) -> None:  # fmt: skip
        """runner: one that reaches the other cores by `group`."""
        super().__init__(config, runner)
        self._watch = watch
        self._group = group
        self._mesh = mesh
        self._balancer: ExpertLoadBalancer | None = None
        self._parallel = config.parallel
        self._token_counts: DPTokenCounts

    @property
    def wake_fds(self) -> Sequence[int]:
        return (*self._mesh.fds, *super().wake_fds)

    def initialize(self, progress: Progress) -> EngineReport:
        with self._together():
            report = super().initialize(progress)
            size, rank = self._parallel.data_parallel_size, self._parallel.data_parallel_rank
            self._token_counts = DPTokenCounts(rank, size, bucket_sizes(report.max_num_seqs))
            self._balancer = self.runner.balancer()
            self._group.barrier()
            return report

    def submit(self, batch: ScheduledBatch) -> int:
        with self._together():
            self._gather_token_counts(batch.total_tokens_num)
            return super().submit(batch)

    def sample(self, ticket: int, mask: TokenMask | None = None) -> None:
        with self._together():
            super().sample(ticket, mask)

    def collect(self, ticket: int) -> ScheduledBatchOutput:
        with self._together():
            return super().collect(ticket)

    def is_called(self) -> bool:
        with self._together():
            self._receive_counts(wait=False)
            self._mesh.check_stay(self._token_counts.step)
            return self._token_counts.is_called

    def join(self) -> None:
        if not self.is_called():
            return
        with self._together():
            self._gather_token_counts(0)
            self.runner.steps.run_dummy_batch()

    def close(self) -> None:
        self._watch.end()
        self._mesh.leave(self._token_counts.step)
        self.runner.close()
        self._group.close()

    @property
    def expert_load(self) -> ExpertLoad | None:
        return None if self._balancer is None else self._balancer.load

    def who_is_behind(self) -> str:
        missing = sorted(self._token_counts.missing)
        if not missing:
            return "the ranks of the data-parallel group wait for each other"
        named = ", ".join(map(str, missing))
        return f"rank {named} of the data-parallel group is behind the others"

    def _gather_token_counts(self, tokens: int) -> None:
        """Gather the token counts of all ranks for the next step, and pad to the largest."""
        self._mesh.send(self._token_counts.contribute(tokens))
        while self._token_counts.missing:
            self._mesh.check_stay(self._token_counts.step)
            self._receive_counts(wait=True)
        metadata = self._token_counts.complete()
        if self._balancer is not None:
            self._balancer.before(metadata.step)
        self.runner.steps.set_dp_padding(metadata.capacity)

    def _receive_counts(self, *, wait: bool) -> None:
        for peer, count in self._mesh.receive(wait=wait):
            self._token_counts.receive(peer, count)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Report an error of the body as another rank's failure if that rank has ended."""
        try:
            yield
        except PeerLeftError as left:
            raise GroupEndedError from left
        except AtomError:
            raise
        except Exception:
            if self._watch.has_lost():
                logger.debug("an error that the end of a rank has made", exc_info=True)
                self._watch.wait_end()
            raise


def start_peers(config: Config, order: MeshOrder, on_failure: OnFailure) -> ExpertParallelExecutor:
    """Meet the other cores. on_failure: called, from any thread, with the reason why the group
    cannot continue; it must end this process."""
    mesh = PeerMesh({peer: socket.socket(fileno=fd) for peer, fd in order.connections.items()})
    watch = PeerWatch(mesh, on_failure)
    watch.start()
    group = meet(config, mesh)
    return ExpertParallelExecutor(config, ModelRunner(config, links=group), group, mesh, watch)


def meet(config: Config, mesh: PeerMesh) -> TorchGroup:
    """Return the group of the cores' devices, once all have come."""
    rank, size = config.parallel.data_parallel_rank, config.parallel.data_parallel_size
    nodes = config.parallel.nodes
    if rank == 0:
        store = open_store(size, for_other_nodes=nodes.count > 1)
        mesh.send_port(store.port)
    else:
        store = find_store(mesh.receive_port(0), size, nodes.address if nodes.rank else LOOPBACK)
    begun = np.zeros(1, dtype=np.int64)
    alone = nodes.count == 1 or is_loopback(nodes.address)
    device = rank_device(config).torch_device
    return TorchGroup(Place(rank, size, device, begun, nodes.count, alone), store)
