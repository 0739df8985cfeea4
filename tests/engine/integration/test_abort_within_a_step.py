"""A client that leaves costs at most the step that is being computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from atom.config import EngineOptions, build_config
from atom.model_engine.engine_core import EngineCore
from atom.model_engine.request import Request
from atom.model_engine.wire.core_sockets import ClientAddress, CoreSockets
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
from tests.support.tiny_model import make_tiny_checkpoint

WAIT_MS = 10_000


class SteppedCore:
    """A real engine core, turned by hand, with the sockets of one client of it."""

    def __init__(self, model: Path, folder: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        address = ClientAddress(folder, 0)
        self.requests = context.socket(zmq.ROUTER)
        self.requests.bind(address.requests)
        self.outputs = context.socket(zmq.PULL)
        self.outputs.bind(address.outputs)
        config = build_config(EngineOptions(model=str(model), device="cpu", num_kv_blocks=100))
        self.sockets = CoreSockets(context, folder, clients=1, rank=0)
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
def stepped(tmp_path: Path) -> Iterator[SteppedCore]:
    model = make_tiny_checkpoint(tmp_path / "qwen3")
    with zmq.Context() as context:
        core = SteppedCore(model, tmp_path, context)
        yield core
        core.close()


def test_an_abort_ends_its_request_before_the_next_step(stepped: SteppedCore) -> None:
    leaving, staying = first_id(0), first_id(0) + 1
    params = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
    stepped.send(
        AddBody([Request(number, [5, 6], params, 52, 0.0) for number in (leaving, staying)])
    )
    for _ in range(3):
        stepped.core.turn()
        assert sorted(stepped.steps_output().rows()[0].tolist()) == [leaving, staying]
    stepped.send(AbortBody([leaving]))
    stepped.core.turn()
    ended = stepped.steps_output()
    assert [(row.request_id, row.reason) for row in ended.finished] == [(leaving, "abort")]
    assert len(ended.token_ids) == 0
    assert stepped.steps_output().rows()[0].tolist() == [staying], (
        "the very next step is without it"
    )
