"""A follower's process: `python -m atom.model_engine.executor.tensor_parallel.rank_main LEVEL`.

Started by RankProcesses only. Configuration and order arrive as two JSON lines on standard input,
which then stays open as a lifeline. It loads its part of the model and runs every step that the
leader runs, with its own slots, tables and columns, which the steps keep equal to the leader's; it
draws the same tokens, and only the leader's are reported. Its standard output is for its last
message; everything else is printed to standard error.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from atom.config import Config
from atom.errors import AtomError
from atom.model_engine.control import RankControl, When
from atom.model_engine.executor.tensor_parallel.rank_processes import RankOrder
from atom.model_engine.executor.tensor_parallel.step_channel import StepMemory, StepReceiver
from atom.model_engine.executor.tensor_parallel.step_codec import (
    SampleStep,
    decode_step,
)
from atom.model_engine.wire.first_loss import LastWords
from atom.utils.collector import collector_at_rest
from atom.utils.exhausted import exhausted
from atom.utils.listening import is_loopback
from atom.utils.parent_watch import ParentLines, end_with_parent
from atom.utils.process_end import end_process

if TYPE_CHECKING:
    from atom.model_engine.model_runner import ModelRunner
    from atom.model_engine.runner.submitted_step import SubmittedStep

logger = logging.getLogger(__name__)


def main() -> int:
    end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    said = os.dup(1)
    os.dup2(2, 1)
    parent = ParentLines()
    config = Config.from_json(parent.next())
    order = msgspec.json.decode(parent.next(), type=RankOrder)
    parent.follow()
    rank = config.parallel.tensor_parallel_rank
    logging.basicConfig(
        level=sys.argv[1], format=f"%(asctime)s %(levelname)s rank {rank} %(name)s: %(message)s"
    )
    try:
        _follow(config, order)
    except AtomError as error:
        return _end(said, LastWords(str(error), True))
    except Exception as error:
        known = exhausted(error)
        if known is not None:
            logger.debug("a rank ends", exc_info=True)
            return _end(said, LastWords(str(known), True))
        logger.exception("rank %d failed", rank)
        return _end(said, LastWords(f"{type(error).__name__}: {error}", False))
    return 0


def _follow(config: Config, order: RankOrder) -> None:
    with collector_at_rest():
        from atom.collectives.torch_group import Place, TorchGroup, find_store
        from atom.model_engine.model_runner import ModelRunner
        from atom.model_engine.runner.rank_device import rank_device

    parallel = config.parallel
    memory = StepMemory(order.memory)
    rank, size = parallel.tensor_parallel_rank, parallel.tensor_parallel_size
    nodes, device = parallel.nodes, rank_device(config).torch_device
    alone = nodes.count == 1 or is_loopback(nodes.address)
    place = Place(rank, size, device, memory.counter(rank), nodes.count, alone)
    group = TorchGroup(place, find_store(order.port, size, order.host))
    runner = ModelRunner(config, group, pages=order.pages, transfers=order.transfers)
    runner.initialize(lambda phase, share: None)
    group.barrier()
    follow_steps(runner, StepReceiver(memory, order.wakeup))
    runner.close()


def follow_steps(runner: ModelRunner, receiver: StepReceiver) -> None:
    """Run the leader's calls until the channel closes."""
    submitted: deque[SubmittedStep] = deque()
    while message := receiver.receive():
        call = decode_step(message)
        if isinstance(call, SampleStep):
            runner.steps.sample(submitted[-1], call.mask)
            continue
        if isinstance(call, RankControl):
            while submitted and call.when is When.BETWEEN_STEPS:
                runner.steps.collect(submitted.popleft())
            call.on_rank(runner)
            continue
        # What the leader has collected by now: both runners know the same of their steps.
        while len(submitted) > call.outstanding:
            runner.steps.collect(submitted.popleft())
        submitted.append(runner.steps.submit(call.batch))


def _end(said: int, words: LastWords) -> int:
    os.write(said, msgspec.json.encode(words) + b"\n")
    return 1


if __name__ == "__main__":
    end_process(main())
