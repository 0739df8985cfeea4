"""Every message between CoreManager and EngineCore, and how it is framed.

A message is two frames: one byte of `EngineCoreRequestType`, then a msgspec body of the type that
`BODY_TYPES` names for it (nothing else is ever decoded: no pickle). A core's messages begin with
the identity of its rank, as a ROUTER puts it there too. Per-step tokens travel as packed
little-endian integers so that a step costs one message however many rows it has.

A process that reaches these sockets is this user's (they are in a folder of mode 0700) and is
trusted not to be hostile; it is not trusted to be without faults. A message that is too large, of
an unknown type or not of its type's shape is a ValueError here: the reader logs it and continues.
Torch-free. The byte values are fixed: a message type keeps its own.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from atom.errors import RequestError
from atom.model_engine.request import FinishReason, Request
from atom.model_engine.transfer_legs import TicketNote, TransferOutcome
from atom.model_engine.wire.core_stats import StatsBody
from atom.model_engine.wire.host_tier_report import HostTierReport
from atom.model_engine.wire.logprob_rows import LogprobsBody
from atom.model_engine.wire.outlook_body import OutlookBody
from atom.model_engine.wire.pooled_rows import PooledBody
from atom.sizing.mask_rule import CAUSAL, MaskRule


class EngineCoreRequestType(enum.Enum):
    """First frame of every message."""

    ADD = b"\x00"
    ABORT = b"\x01"
    # b"\x02" was START_DP_WAVE: ranks that share experts wake each other (peer_mesh.py).
    UTILITY = b"\x03"
    EXECUTOR_FAILED = b"\x04"
    SHUTDOWN = b"\x05"
    STREAM = b"\x06"
    READY = b"\x07"
    UTILITY_RESPONSE = b"\x08"
    STATS = b"\x09"
    PROGRESS = b"\x0a"
    ABORT_CLIENT = b"\x0b"


class AddBody(msgspec.Struct, frozen=True):
    requests: list[Request]


class RefusedRequest(msgspec.Struct, frozen=True):
    """A request of an ADD message that has values out of their range. param: its field at fault."""

    id: int
    reason: str
    param: str


class SalvagedAdd(msgspec.Struct, frozen=True):
    """Hold the valid requests of a partly invalid ADD message; never sent."""

    requests: list[Request]
    refused: list[RefusedRequest]


class AbortBody(msgspec.Struct, frozen=True):
    request_ids: list[int]


class AbortClientBody(msgspec.Struct, frozen=True):
    """A client is gone: its requests end without an answer."""

    client: int


class ShutdownBody(msgspec.Struct, frozen=True):
    """Sent by the manager to end the core; the core answers by exiting with code 0."""


class UtilityBody(msgspec.Struct, frozen=True):
    """A named call into every core (control.py declares them), answered by UTILITY_RESPONSE.

    call_id: carries the number of the caller's client, as request ids do."""

    call_id: int
    method: str
    args: list[Any] = []


class UtilityResponseBody(msgspec.Struct, frozen=True):
    call_id: int
    error: str | None
    result: Any = None


class ExecutorFailedBody(msgspec.Struct, frozen=True):
    """Report that the core cannot continue: `message` is for people, `user_error` distinguishes a
    bad input (no traceback wanted) from a fault of ours."""

    message: str
    user_error: bool


class ProgressBody(msgspec.Struct, frozen=True):
    """Report the progress of start-up: shown by /health while the engine is not ready."""

    phase: str
    fraction: float


class ConcurrencyRow(msgspec.Struct, frozen=True):
    """Describe how many sequences of `context_tokens` tokens the KV cache holds at once."""

    context_tokens: int
    sequences: int


class TimedStep(msgspec.Struct, frozen=True, array_like=True):
    """Hold the time of a step of `rows` rows, each with `drafts` drafts, that attended to `context`
    tokens per row; context is 0 if short."""

    rows: int
    drafts: int
    seconds: float
    context: int = 0


class RankReport(msgspec.Struct, frozen=True):
    """The sizes of one data-parallel rank, in bytes and tokens."""

    rank: int
    device: str
    num_blocks: int
    kv_tokens: int
    kv_cache_bytes: int
    weights_bytes: int
    peak_bytes: int
    total_memory_bytes: int


class ModelReport(msgspec.Struct, frozen=True):
    """Report the model and the software that computes it."""

    model: str
    architecture: str
    device: str
    dtype: str
    kv_cache_dtype: str
    backends: dict[str, str]  # op → backend
    version: str


class RunReport(ModelReport, frozen=True):
    """Add the limits of a step, and the number of ranks."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int
    data_parallel_size: int


class MemoryReport(RunReport, frozen=True):
    """Add the memory of a rank, in bytes and tokens. kv_tokens: of sequences of max_model_len
    that fill the blocks."""

    block_size: int
    num_blocks: int
    weights_bytes: int
    peak_bytes: int
    kv_cache_bytes: int
    kv_bytes_per_token: int
    kv_tokens: int
    total_memory_bytes: int
    limited_by: str  # the bound of the number of blocks: KvBudget.limited_by
    concurrency: list[ConcurrencyRow]


class EngineReport(MemoryReport, frozen=True):
    """Report the results of start-up; the body of READY. Sizes in bytes and tokens, per rank.

    ranks: every rank's own sizes; set once all reports have arrived. versions: of the software that
    computes, by name. cache_masks: of each group of layers that shares blocks, which tokens its
    queries see. timed_steps: by rows, if rows may carry drafts and graphs run them.
    state_bytes: of all slots and checkpoints, in layers that keep states; num_checkpoints: of
    states, one every checkpoint_tokens. asked_num_seqs: as configured, if states leave room for
    fewer. host_tier: of the KV cache, if there is one. kv_layout: the digest of the cache layout of
    an engine that exchanges KV pages, else empty. conversion: of the checkpoint's matrices to a
    format that kernels multiply, in words, empty without one.
    """

    ranks: list[RankReport] = []
    versions: dict[str, str] = {}
    cache_masks: tuple[MaskRule, ...] = (CAUSAL,)
    timed_steps: list[TimedStep] = []
    state_bytes: int = 0
    num_checkpoints: int = 0
    checkpoint_tokens: int = 0
    asked_num_seqs: int = 0
    host_tier: HostTierReport | None = None
    kv_layout: str = ""
    conversion: str = ""

    @property
    def on_cpu(self) -> bool:
        """Return whether the model computes on the processor's cores."""
        return self.device.startswith("cpu")


class FinishedRow(msgspec.Struct, frozen=True):
    """A request that ended in this step. reason is a FinishReason's value. queue_seconds: from its
    arrival until it was first scheduled; None if it never was. param: the field of the request that
    is at fault when it is an error, None when the request is not. ticket: of a prefill leg."""

    request_id: int
    reason: str
    detail: str
    num_cached_tokens: int
    queue_seconds: float | None = None
    param: str | None = None
    ticket: TicketNote | None = None


def aborted_row(request_id: int) -> FinishedRow:
    """Write the end of a request that was aborted before it was scheduled, or is no core's now."""
    return FinishedRow(request_id, FinishReason.ABORT.value, "aborted", num_cached_tokens=0)


def refused_row(request_id: int, why: str, param: str | None = None) -> FinishedRow:
    """Write the end of a request that was not taken. param: the field of it that is at fault."""
    return FinishedRow(request_id, FinishReason.ERROR.value, why, num_cached_tokens=0, param=param)


class RankStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold one rank's statistics; alone also its heartbeat (heartbeat.py).

    number: counts up with every message of the rank, to any client; the totals of a higher number
    include those of every lower one. outlook: None of a rank that keeps none.
    """

    rank: int
    number: int
    stats: StatsBody
    outlook: OutlookBody | None = None


class StreamBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold all tokens of one engine step: row i gave the next `counts[i]` of `token_ids` to request
    `request_ids[i]`.

    request_ids: packed int64; token_ids: packed int32; counts: packed int32, or empty if every row
    gave one. A request in `finished` has its last tokens in this very message (none if it was
    aborted). logprobs: of these tokens; prompt_logprobs: of prompt tokens, in order; both only for
    requests that asked, and perhaps for some that have ended. pooled: vectors of requests in
    `finished`, which have no tokens then. rank_stats: of the core after this step, so that its
    totals are never behind the clients' own counts; a core always sends them. transfers: of
    decode legs that wait for pages no longer, before their first tokens.
    """

    request_ids: bytes
    token_ids: bytes
    finished: list[FinishedRow]
    logprobs: LogprobsBody | None = None
    prompt_logprobs: LogprobsBody | None = None
    rank_stats: RankStats | None = None
    counts: bytes = b""
    pooled: PooledBody | None = None
    transfers: list[TransferOutcome] = []

    def __post_init__(self) -> None:
        rows, rest = divmod(len(self.request_ids), 8)
        tokens = self._num_counted(rows) if self.counts else rows
        if rest or len(self.token_ids) != 4 * tokens:
            raise ValueError(
                f"{len(self.request_ids)} bytes of request ids do not match "
                f"{len(self.token_ids)} bytes of token ids"
            )

    def requests(self) -> list[int]:
        """Return the ids of the requests that got tokens, in the order of `rows`."""
        numbers: list[int] = np.frombuffer(self.request_ids, dtype="<i8").tolist()
        return numbers

    def rows(self) -> Iterable[tuple[int, list[int]]]:
        """Yield each request that got tokens, and these."""
        token_ids = np.frombuffer(self.token_ids, dtype="<i4")
        if not self.counts:  # nearly always, so without Python code for each
            return zip(self.requests(), token_ids.reshape(-1, 1).tolist(), strict=True)
        counts = np.frombuffer(self.counts, dtype="<i4")
        return accepted_tokens(np.frombuffer(self.request_ids, dtype="<i8"), token_ids, counts)

    def _num_counted(self, rows: int) -> int:
        if len(self.counts) != 4 * rows or (counts := np.frombuffer(self.counts, "<i4")).min() < 1:
            raise ValueError(f"{len(self.counts)} bytes of counts do not fit {rows} rows")
        return int(counts.sum())


def accepted_tokens(
    request_ids: NDArray[np.int64], token_ids: NDArray[np.int32], counts: NDArray[np.int32] | None
) -> Iterator[tuple[int, list[int]]]:
    """Yield each request, and the tokens that it got: `counts` of each, None for one each."""
    tokens = token_ids.tolist()
    ends = range(1, len(tokens) + 1) if counts is None else counts.cumsum().tolist()
    first = 0
    for request_id, end in zip(request_ids.tolist(), ends, strict=True):
        yield request_id, tokens[first:end]
        first = end


BODY_TYPES: dict[EngineCoreRequestType, type[msgspec.Struct]] = {
    EngineCoreRequestType.ADD: AddBody,
    EngineCoreRequestType.ABORT: AbortBody,
    EngineCoreRequestType.ABORT_CLIENT: AbortClientBody,
    EngineCoreRequestType.SHUTDOWN: ShutdownBody,
    EngineCoreRequestType.UTILITY: UtilityBody,
    EngineCoreRequestType.UTILITY_RESPONSE: UtilityResponseBody,
    EngineCoreRequestType.EXECUTOR_FAILED: ExecutorFailedBody,
    EngineCoreRequestType.PROGRESS: ProgressBody,
    EngineCoreRequestType.READY: EngineReport,
    EngineCoreRequestType.STREAM: StreamBody,
    EngineCoreRequestType.STATS: RankStats,
}

_TYPE_OF_BODY = {body: kind for kind, body in BODY_TYPES.items()}
_DECODERS = {kind.value: msgspec.msgpack.Decoder(body) for kind, body in BODY_TYPES.items()}
_ENCODER = msgspec.msgpack.Encoder()


# Far above any real message (CoreManager splits additions), far below a harmful size.
MAX_MESSAGE_BYTES = 256 * 2**20
_RANK_PREFIX = b"rank-"

# Request and call ids carry the client that made them, so that a core knows whom to answer.
_CLIENT_SHIFT = 40


def encode(body: msgspec.Struct) -> list[bytes]:
    """Return the frames of a message; the type byte follows from the body's class."""
    return [_TYPE_OF_BODY[type(body)].value, _ENCODER.encode(body)]


def decode(frames: Sequence[bytes]) -> msgspec.Struct:
    """Decode the body of a message. Raises ValueError for an invalid one."""
    size_bytes = sum(map(len, frames))
    if size_bytes > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {size_bytes} bytes; at most {MAX_MESSAGE_BYTES} are read")
    if len(frames) != 2:
        raise ValueError(f"a message of {len(frames)} frames; type and body are expected")
    kind, payload = frames
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise ValueError(f"unknown message type {kind[:16]!r}")
    try:
        return decoder.decode(payload)
    except RecursionError as error:
        raise ValueError("a message that is nested too deeply") from error
    except (RequestError, msgspec.ValidationError):
        if kind != EngineCoreRequestType.ADD.value:
            raise
        return _salvaged(payload)


class _RawAdd(msgspec.Struct, frozen=True):
    requests: list[msgspec.Raw]


class _Numbered(msgspec.Struct, frozen=True):
    """Reads of a request nothing but its number."""

    id: int


_RAW_ADD = msgspec.msgpack.Decoder(_RawAdd)
_NUMBERED = msgspec.msgpack.Decoder(_Numbered)
_REQUEST = msgspec.msgpack.Decoder(Request)


def _salvaged(payload: bytes) -> SalvagedAdd:
    """Decode each request of an ADD message separately: an invalid one must not fail the others.
    Raises ValueError if not even their numbers can be read."""
    requests, refused = [], []
    try:
        for raw in _RAW_ADD.decode(payload).requests:
            try:
                requests.append(_REQUEST.decode(raw))
            except (RequestError, msgspec.ValidationError, RecursionError) as error:
                param = (error.param if isinstance(error, RequestError) else None) or "request"
                number = _NUMBERED.decode(raw).id
                refused.append(RefusedRequest(number, str(error), param))
    except RecursionError as error:
        raise ValueError("a message that is nested too deeply") from error
    return SalvagedAdd(requests, refused)


def identity_of(rank: int) -> bytes:
    return _RANK_PREFIX + str(rank).encode()


def decode_from_rank(frames: Sequence[bytes], ranks: int) -> tuple[int, msgspec.Struct]:
    """Decode (rank, body) of a message with its sender's identity in front. Raises ValueError."""
    identity = frames[0]
    digits = identity.removeprefix(_RANK_PREFIX)
    if not (digits.isdigit() and identity == identity_of(int(digits[:9])) and int(digits) < ranks):
        raise ValueError(f"unknown sender {identity[:16]!r}")
    return int(digits), decode(frames[1:])


def first_id(client: int) -> int:
    """Return the first request or call id of a client; it counts up from there."""
    return (client << _CLIENT_SHIFT) + 1


def client_of(number: int) -> int:
    """Return the client whose request or call this is."""
    return number >> _CLIENT_SHIFT


def clients_of(request_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the clients of these request ids, [rows]."""
    return request_ids >> _CLIENT_SHIFT
