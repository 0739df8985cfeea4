"""What goes wrong between and inside engine processes: the engine lives, or says why it does not.

The sockets lie in a folder of mode 0700, so only faults are tested here, not attackers.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from atom.config import Config, EngineOptions, build_config
from atom.model_engine.request import Request
from atom.model_engine.wire.core_port import CoreFailed, CoreLost, CoreResumed, CoreStalled
from atom.model_engine.wire.core_sockets import ClientAddress
from atom.model_engine.wire.engine_protocol import (
    MAX_MESSAGE_BYTES,
    AddBody,
    EngineCoreRequestType,
    RankStats,
    StreamBody,
    encode,
    first_id,
    identity_of,
)
from atom.sampling_params import SamplingParams
from tests.support.engine_core.core_client import CoreClient, core_client
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.stderr_file import stderr_into
from tests.support.waiting import HANG_SECONDS, wait_until

UNKNOWN_TYPE = [b"\xff", b"\x80"]
TRUNCATED = [EngineCoreRequestType.ADD.value, b"\x81\xa8reque"]
WRONG_SHAPE = [EngineCoreRequestType.ADD.value, b"\x93\x01\x02\x03"]
NO_BODY = [EngineCoreRequestType.ABORT.value]
HUGE = [EngineCoreRequestType.ADD.value, bytes(MAX_MESSAGE_BYTES + 1)]
FOR_THE_OTHER_SIDE = encode(StreamBody(request_ids=b"", token_ids=b"", finished=[]))
MALFORMED = {
    "unknown type": UNKNOWN_TYPE,
    "truncated body": TRUNCATED,
    "wrong shape": WRONG_SHAPE,
    "no body": NO_BODY,
    "huge body": HUGE,
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("tiny") / "qwen3"
    make_tiny_checkpoint(folder, max_position_embeddings=8192)
    options = EngineOptions.of(
        model=str(folder),
        device="cpu",
        num_kv_blocks=1200,
        max_num_seqs=16,
        data_parallel_size=2,
        stall_seconds=3.0,
    )
    return build_config(options)


class EngineRig:
    """Two ranks, their manager, and the lines that the ranks log."""

    def __init__(self, config: Config, log_path: Path) -> None:
        self.client = CoreClient(config, clients=2)
        self._log_path = log_path
        self._read = 0

    def start(self) -> None:
        with stderr_into(self._log_path):
            self.client.start()
        self.client.wait_ready()

    def wait_logged(self, words: str) -> str:
        """The line with `words`, among those that no earlier call has returned."""
        found: list[str] = []

        def logged() -> bool:
            lines = self._log_path.read_text().splitlines()[self._read :]
            found[:] = [line for line in lines if words in line]
            return bool(found)

        wait_until(logged, f"the log says {words!r}")
        self._read = self._log_path.read_text().splitlines().index(found[0]) + 1
        return found[0]


@pytest.fixture(scope="module")
def rig(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineRig]:
    rig = EngineRig(config, tmp_path_factory.mktemp("log") / "stderr")
    try:
        rig.start()
        yield rig
    finally:
        rig.client.manager.shutdown()


@pytest.fixture
def engine(rig: EngineRig) -> CoreClient:
    """Every test leaves it well."""
    return rig.client


@pytest.fixture
def raw_client(engine: CoreClient) -> Iterator[zmq.Socket[bytes]]:
    """A client of the same cores that sends whatever a test likes: a ROUTER they connect to."""
    address = ClientAddress(engine.manager.address.folder, 1)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.bind(address.requests)

        def connected() -> bool:
            # An empty ABORT is harmless, and leaves only once the rank is connected.
            with contextlib.suppress(zmq.ZMQError):
                for rank in (0, 1):
                    router.send_multipart([identity_of(rank), b"\x01", b"\x81\xabrequest_ids\x90"])
                return True
            return False

        wait_until(connected, "the cores connect")
        yield router


@contextlib.contextmanager
def raw_core(engine: CoreClient) -> Iterator[zmq.Socket[bytes]]:
    """Somebody who sends to the manager as cores do."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.setsockopt(zmq.LINGER, 5000)
        push.connect(engine.manager.address.outputs)
        yield push


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED)
def test_a_core_refuses_a_malformed_message_and_lives(
    rig: EngineRig, raw_client: zmq.Socket[bytes], frames: list[bytes]
) -> None:
    raw_client.send_multipart([identity_of(1), *frames])
    assert "engine 1 " in rig.wait_logged("refused a malformed message")
    rig.client.assert_well()


def test_a_core_ignores_messages_that_are_not_for_cores(
    rig: EngineRig, raw_client: zmq.Socket[bytes]
) -> None:
    raw_client.send_multipart([identity_of(0), *FOR_THE_OTHER_SIDE])
    rig.wait_logged("ignored a StreamBody: not for an engine core")
    rig.client.assert_well()


def test_a_core_refuses_a_request_that_nobody_could_be_answered_for(
    rig: EngineRig, raw_client: zmq.Socket[bytes]
) -> None:
    for number in (first_id(7), -5):
        request = Request(number, [5], SamplingParams(max_tokens=4), 5, arrive_time=0.0)
        raw_client.send_multipart([identity_of(0), *encode(AddBody(requests=[request]))])
        rig.wait_logged(f"refused request {number}: of no client of this engine")
    rig.client.assert_well()


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED)
def test_a_manager_refuses_a_malformed_output_and_lives(
    engine: CoreClient, caplog: pytest.LogCaptureFixture, frames: list[bytes]
) -> None:
    with raw_core(engine) as push:
        push.send_multipart([identity_of(0), *frames])
        wait_until(lambda: "refused a malformed message" in caplog.text, "it is logged")
    engine.assert_well()


@pytest.mark.parametrize("sender", [b"rank-9", b"rank-x", b"", b"rank-01", b"x" * 300])
def test_a_manager_refuses_outputs_of_unknown_senders(
    engine: CoreClient, caplog: pytest.LogCaptureFixture, sender: bytes
) -> None:
    with raw_core(engine) as push:
        push.send_multipart([sender, *FOR_THE_OTHER_SIDE])
        wait_until(lambda: "unknown sender" in caplog.text, "it is logged")
    engine.assert_well()


def test_tokens_that_do_not_match_their_requests_are_refused(
    engine: CoreClient, caplog: pytest.LogCaptureFixture
) -> None:
    uneven = [b"\x06", b"\x83\xabrequest_ids\xc4\x08" + bytes(8) + b"\xa9token_ids\xc4\x00"]
    with raw_core(engine) as push:
        push.send_multipart([identity_of(0), uneven[0], uneven[1] + b"\xa8finished\x90"])
        wait_until(lambda: "do not match" in caplog.text, "it is logged")
    engine.assert_well()


def test_nobody_reads_what_is_sent_to_the_requests_socket(engine: CoreClient) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.setsockopt(zmq.SNDHWM, 4)
        stranger.connect(engine.manager.address.requests)
        for frames in MALFORMED.values():
            stranger.send_multipart(frames)
        engine.assert_well()


def test_a_stopped_core_is_stalled_until_it_runs_again(engine: CoreClient) -> None:
    numbers = engine.add(*[[5, 6]] * 4, max_tokens=3000)
    for number in numbers:
        engine.wait_first_token(number)
    victim = engine.processes()[1]
    victim.suspend()
    try:
        stalled = engine.next_of(CoreStalled)
        assert stalled.rank == 1
        assert stalled.silent_seconds >= 3.0
    finally:
        victim.resume()
    assert engine.next_of(CoreResumed).rank == 1
    engine.manager.abort_requests(numbers)
    engine.wait_finished(*numbers)
    engine.assert_well()


def test_a_core_that_waits_for_work_is_not_stalled(engine: CoreClient) -> None:
    engine.assert_well()
    heard = {0: 0, 1: 0}
    while min(heard.values()) < 5:  # beats come each second, and the limit is three
        event = engine.events.get(timeout=HANG_SECONDS)
        assert not isinstance(event, CoreStalled)
        if isinstance(event, RankStats):
            heard[event.rank] += 1


def test_a_request_that_no_step_could_compute_ends_alone(config: Config) -> None:
    """The core checks what the front checks: a client of its wire may leave that out."""
    with core_client(config) as client:
        calm = client.answer([5, 6], max_tokens=300)
        beside = client.add([5, 6], max_tokens=300)
        outside = config.model.vocab_size + 1000
        refused = client.add([outside])
        assert client.wait_finished(*refused) == [[]]
        assert client.wait_finished(*beside) == [calm]
        client.assert_well()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_core_is_told_with_the_signal(config: Config, number: signal.Signals) -> None:
    with core_client(config) as client:
        victim, left = client.processes()
        victim.send_signal(number)
        lost = client.next_of(CoreLost)
        words = f"the engine process of rank 0 (pid {victim.pid}) was killed by signal {number:d}"
        assert lost.rank == 0
        assert words in lost.message
        left.send_signal(number)
        failed = client.next_of(CoreFailed)
        assert f"the engine process of rank 1 (pid {left.pid})" in failed.message
