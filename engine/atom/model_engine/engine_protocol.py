"""Every message between CoreManager and EngineCore, and how it is framed.

A message is two frames: one byte of `EngineCoreRequestType`, then a msgspec body of the type that
`BODY_TYPES` names for it (nothing else is ever decoded: no pickle). Per-step tokens travel as
packed little-endian integers so that a step costs one message however many rows it has.
Torch-free; the guide's byte values (seeds/001, reference §15).
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from atom.model_engine.request import Request


class EngineCoreRequestType(enum.Enum):
    """First frame of every message."""

    ADD = b"\x00"
    ABORT = b"\x01"
    START_DP_WAVE = b"\x02"
    UTILITY = b"\x03"
    EXECUTOR_FAILED = b"\x04"
    SHUTDOWN = b"\x05"
    STREAM = b"\x06"
    READY = b"\x07"
    UTILITY_RESPONSE = b"\x08"
    STATS = b"\x09"
    PROGRESS = b"\x0a"


class AddBody(msgspec.Struct, frozen=True):
    requests: list[Request]


class AbortBody(msgspec.Struct, frozen=True):
    request_ids: list[int]


class ShutdownBody(msgspec.Struct, frozen=True):
    """Sent by the manager to end the core; the core answers by exiting with code 0."""


class UtilityBody(msgspec.Struct, frozen=True):
    """A named call into the core (see EngineCore.UTILITIES), answered by UTILITY_RESPONSE."""

    call_id: int
    method: str


class UtilityResponseBody(msgspec.Struct, frozen=True):
    call_id: int
    error: str | None
    result: Any = None


class ExecutorFailedBody(msgspec.Struct, frozen=True):
    """The core cannot go on: `message` is for people, `user_error` tells a bad input (no traceback
    wanted) from a fault of ours."""

    message: str
    user_error: bool


class ProgressBody(msgspec.Struct, frozen=True):
    """Where start-up stands: shown by /health while the engine is not ready."""

    phase: str
    fraction: float


class ConcurrencyRow(msgspec.Struct, frozen=True):
    """How many sequences of `context_tokens` tokens the KV cache holds at once."""

    context_tokens: int
    sequences: int


class EngineReport(msgspec.Struct, frozen=True):
    """What start-up found out; the body of READY. Sizes in bytes and tokens, per rank."""

    model: str
    architecture: str
    device: str
    dtype: str
    kv_cache_dtype: str
    backends: dict[str, str]  # op → backend
    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    weights_bytes: int
    peak_bytes: int
    kv_cache_bytes: int
    kv_bytes_per_token: int
    total_memory_bytes: int
    limited_by: str  # what bounded the number of blocks: "memory" or "max_num_seqs"
    concurrency: list[ConcurrencyRow]
    tensor_parallel_size: int
    data_parallel_size: int
    version: str

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.block_size


class FinishedRow(msgspec.Struct, frozen=True):
    """A request that ended in this step. reason is a FinishReason's value."""

    request_id: int
    reason: str
    detail: str
    num_cached_tokens: int


class StreamBody(msgspec.Struct, frozen=True):
    """All tokens of one engine step: row i gave `token_ids[i]` to request `request_ids[i]`.

    request_ids: packed int64; token_ids: packed int32, the same count. A request in `finished` has
    its last token in this very message (none if it was aborted).
    """

    request_ids: bytes
    token_ids: bytes
    finished: list[FinishedRow]

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        return (
            np.frombuffer(self.request_ids, dtype="<i8"),
            np.frombuffer(self.token_ids, dtype="<i4"),
        )


class StatsBody(msgspec.Struct, frozen=True):
    """Gauges and running totals of one core; also the heartbeat (sent at least once a second)."""

    requests_running: int
    requests_waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    preemptions_total: int
    prompt_tokens_total: int  # prompt tokens computed or taken from the cache
    cached_tokens_total: int  # of these, taken from the prefix cache
    generation_tokens_total: int
    steps_total: int


BODY_TYPES: dict[EngineCoreRequestType, type[msgspec.Struct]] = {
    EngineCoreRequestType.ADD: AddBody,
    EngineCoreRequestType.ABORT: AbortBody,
    EngineCoreRequestType.SHUTDOWN: ShutdownBody,
    EngineCoreRequestType.UTILITY: UtilityBody,
    EngineCoreRequestType.UTILITY_RESPONSE: UtilityResponseBody,
    EngineCoreRequestType.EXECUTOR_FAILED: ExecutorFailedBody,
    EngineCoreRequestType.PROGRESS: ProgressBody,
    EngineCoreRequestType.READY: EngineReport,
    EngineCoreRequestType.STREAM: StreamBody,
    EngineCoreRequestType.STATS: StatsBody,
}

_TYPE_OF_BODY = {body: kind for kind, body in BODY_TYPES.items()}
_DECODERS = {kind.value: msgspec.msgpack.Decoder(body) for kind, body in BODY_TYPES.items()}
_ENCODER = msgspec.msgpack.Encoder()


def encode(body: msgspec.Struct) -> list[bytes]:
    """The frames of a message; the type byte follows from the body's class."""
    return [_TYPE_OF_BODY[type(body)].value, _ENCODER.encode(body)]


def decode(frames: list[bytes]) -> msgspec.Struct:
    """The body of a message. Raises ValueError on a type that has no body, or a malformed one."""
    kind, payload = frames
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise ValueError(f"unknown message type {kind!r}")
    return decoder.decode(payload)
