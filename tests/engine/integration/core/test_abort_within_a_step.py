"""What a core tells its client with each step, and that a client which leaves costs one at most."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from atom.config import EngineOptions, build_config
from atom.model_engine.engine_core import EngineCore
from atom.model_engine.request import Request
from atom.model_engine.wire.core_sockets import ClientAddress, CoreSockets
from atom.model_engine.wire.core_stats import StatsBody
from atom.model_engine.wire.engine_protocol import (
    AbortBody,
    AddBody,
    StreamBody,
    decode_from_rank,
    encode,
    first_id,
    identity_of,
)
from atom.sampling_params import SamplingParams
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.waiting import HANG_SECONDS

WAIT_MS = 1000 * int(HANG_SECONDS)


class SteppedCore:
    """A real engine core, turned by hand, with the sockets of one client of it."""

    def __init__(self, model: Path, folder: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        address = ClientAddress(folder, 0)
        self.requests = context.socket(zmq.ROUTER)
        self.requests.bind(address.requests)
        self.outputs = context.socket(zmq.PULL)
        self.outputs.bind(address.outputs)
        config = build_config(EngineOptions.of(model=str(model), device="cpu", num_kv_blocks=100))
        self.sockets = CoreSockets(context, [address.endpoints], rank=0)
        self.core = EngineCore(config, self.sockets)
        self.core.start()
        assert self.requests.poll(WAIT_MS), "READY comes by the requests' socket"
        self.requests.recv_multipart()

    def send(self, body: AddBody | AbortBody) -> None:
        """Returns when the core has it in its inbox."""
        self.requests.send_multipart([identity_of(0), *encode(body)])
        self.sockets.wait()

    def steps_output(self) -> StreamBody:
        while True:
            assert self.outputs.poll(WAIT_MS), "an output"
            _, body = decode_from_rank(self.outputs.recv_multipart(), ranks=1)
            if isinstance(body, StreamBody):
                return body

    def close(self) -> None:
        for socket in (self.requests, self.outputs):
            socket.close(linger=0)
        self.sockets.close()


@pytest.fixture
def stepped(tmp_path: Path, socket_folder: Path) -> Iterator[SteppedCore]:
    model = make_tiny_checkpoint(tmp_path / "qwen3")
    with zmq.Context() as context:
        core = SteppedCore(model, socket_folder, context)
        yield core
        core.close()


def test_an_abort_ends_its_request_before_the_next_step(stepped: SteppedCore) -> None:
    leaving, staying = first_id(0), first_id(0) + 1
    params = greedy(max_tokens=50)
    stepped.send(
        AddBody([Request(number, [5, 6], params, 52, 0.0) for number in (leaving, staying)])
    )
    for _ in range(3):
        stepped.core.turn()
        assert sorted(stepped.steps_output().requests()) == [leaving, staying]
    stepped.send(AbortBody([leaving]))
    stepped.core.turn()
    ended = stepped.steps_output()
    assert [(row.request_id, row.reason) for row in ended.finished] == [(leaving, "abort")]
    assert len(ended.token_ids) == 0
    assert stepped.steps_output().requests() == [staying], "the very next step is without it"


def test_every_step_brings_totals_that_hold_its_tokens(stepped: SteppedCore) -> None:
    """No heartbeat beats here, so nothing else can bring them."""
    short, long = first_id(0), first_id(0) + 1
    bounds = {short: 1, long: 9}
    stepped.send(
        AddBody(
            [
                Request(number, [5, 6, 7], greedy(max_tokens=most), 3 + most, 0.0)
                for number, most in bounds.items()
            ]
        )
    )
    tokens, before = 0, 0
    for open_requests in (1, 1, 1):
        stepped.core.turn()
        body = stepped.steps_output()
        tokens += len(body.requests())
        stats = told_by(body, after=before)
        assert (stats.generation_tokens_total, stats.prompt_tokens_total) == (tokens, 6)
        assert stats.requests_running == open_requests
        before = body.rank_stats.number
    stepped.send(AbortBody([long]))
    stepped.core.turn()
    stats = told_by(stepped.steps_output(), after=before)
    assert (stats.requests_running, stats.kv_blocks_used) == (0, 0), "an end without a step too"


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def told_by(body: StreamBody, after: int) -> StatsBody:
    assert body.rank_stats is not None
    assert body.rank_stats.number > after
    return body.rank_stats.stats
