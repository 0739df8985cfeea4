"""The two legs of a request whose prompt and answer are computed by different engines.

Values that travel between the HTTP server and its engine core. The prefill leg ends with a
`TicketNote`, by which another engine may read the pages; the decode leg begins with one and reports
a `TransferOutcome`. Torch-free, and without the words of any API.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

PROTOCOL = 1  # of the frames between engines; incremented when their meaning changes
MOST_HOST_CHARS = 253
MOST_NAME_CHARS = 256
TICKET_PATTERN = "^[0-9a-f]{32}$"

Host = Annotated[str, Meta(min_length=1, max_length=MOST_HOST_CHARS)]
Name = Annotated[str, Meta(max_length=MOST_NAME_CHARS)]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Hex32 = Annotated[str, Meta(pattern=TICKET_PATTERN)]
Tokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class PrefillLeg(msgspec.Struct, frozen=True, tag="prefill"):
    """Compute the prompt, draw one token that is thrown away, and keep the pages for another
    engine."""


class DecodeLeg(msgspec.Struct, frozen=True, tag="decode"):
    """Read the pages of the prompt from the engine that computed it. host, port: of its side
    channel; num_tokens: of the prompt, as far as its pages are kept; layout: the digest of that
    engine's cache layout."""

    host: Host
    port: Port
    engine_id: Name
    ticket: Hex32
    layout: Hex32
    num_tokens: Tokens


Leg = PrefillLeg | DecodeLeg


class TicketNote(msgspec.Struct, frozen=True):
    """Describe the pages that a prefill leg left. block_ids: of each group of layers; empty if
    nothing is kept, and `ticket` is then empty too. host, port: of the side channel; rank: of data
    parallelism; ranks: that share the copy of the model."""

    engine_id: str
    host: str
    port: int
    layout: str
    ticket: str
    num_tokens: int
    block_ids: list[list[int]]
    rank: int = 0
    ranks: int = 1


class TransferResult(StrEnum):
    """Name the origin of a decode leg's prompt. TRANSFERRED: pages of another engine, at least in
    part; RECOMPUTED: computed here although a ticket was given; LOCAL: the prefix cache had all but
    a few tokens of it; FAILED: the request ended because the pages did not arrive."""

    TRANSFERRED = "transferred"
    RECOMPUTED = "recomputed"
    LOCAL = "local"
    FAILED = "failed"


class PullEnd(StrEnum):
    """Name why pages did not arrive, as the header and the metrics report it."""

    CHECKSUM = "checksum"
    FAULT = "fault"
    GONE = "gone"
    INCOMPATIBLE = "incompatible"
    LOST = "connection_lost"
    MISSING = "missing"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"


class TransferOutcome(msgspec.Struct, frozen=True):
    """Report the end of a decode leg's wait for pages. reason: one word, empty if there is nothing
    to explain; tokens: whose pages were received; seconds: from arrival to the last page, of which
    `handshake_seconds` passed before the other engine accepted the connection and `copy_seconds`
    between the first page and the last."""

    request_id: int
    result: TransferResult
    reason: str = ""
    tokens: int = 0
    seconds: float = 0.0
    handshake_seconds: float = 0.0
    copy_seconds: float = 0.0
