"""Frames between two engines that exchange KV pages: typed, bounded, and never pickle.

A frame is its length, 4 bytes in network order, and that many bytes of msgpack: a map with the key
`type`. A `Page` is followed by `size` bytes of a canonical page, unless these are in memory that
both processes have mapped (page_ring.py), or that NIXL reads (nixl_agent.py). No frame is longer
than 1 MiB, so that no peer can make this process allocate more before it is understood. A frame
that is too long, of an unknown type or not of its type's shape is a `FrameError`: the connection
then ends.

    consumer                          producer
    hello  ──────────────────────────▶  welcome, or refused with the field that differs
    mapped ──────────────────────────▶  pages are in the memory that the welcome offered, if it did
    used {position} ─────────────────▶  places of pages are free again
    want {ticket, runs} ─────────────▶  page …, have {missing}        (gone: no such ticket)
    renew {tickets} ─────────────────▶
    done {ticket} ───────────────────▶
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
import xxhash
from msgspec import Meta

from atom.model_engine.page_access import DevicePage, PageContent
from atom.model_engine.transfer_legs import Hex32, Name

MOST_FRAME_BYTES = 1 << 20
MOST_PAGE_BYTES = 1 << 30
MOST_TICKETS = 4096  # of one renewal
HASH_BYTES = 8
LENGTH = struct.Struct("!I")

Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Sum = Annotated[bytes, Meta(min_length=8, max_length=8)]
Seconds = Annotated[float, Meta(ge=0)]
Text = Annotated[str, Meta(max_length=4096)]


class FrameError(Exception):
    """Raised for bytes that are no frame of this protocol."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The consumer's first frame. layout: digest of its cache layout, whose fields `facts` names
    one by one, so that a mismatch can be named. clock: its seconds since 1970; host: names its host
    (page_ring.host_identity); device: the kind of its device's memory (DeviceMemory.kind)."""

    protocol: Number
    layout: Hex32
    facts: dict[Name, Text]
    engine_id: Name
    transports: Annotated[list[Name], Meta(max_length=16)]
    clock: Seconds
    host: Name = ""
    device: Name = ""


class Registered(msgspec.Struct, frozen=True):
    """Memory for pages that NIXL reads. agent: how the producer's agent is reached, as NIXL writes
    it; address, size: of the memory, in bytes."""

    agent: Annotated[bytes, Meta(max_length=1 << 16)]
    address: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    size: Annotated[int, Meta(ge=0, le=2**62)]


class OnDevice(msgspec.Struct, frozen=True):
    """Memory for pages on a device. handle: by which another process of the host maps it; size: in
    bytes; device: its name."""

    handle: Annotated[bytes, Meta(max_length=1 << 12)]
    size: Annotated[int, Meta(gt=0, le=2**62)]
    device: Name


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The producer's answer. boot_id: made when its process started; tp: ranks of a model copy;
    memory, key: of the memory for pages that it offers, by the name of its socket; else empty;
    registered: the memory that it offers by NIXL; on_device: the memory of its device."""

    transport: Name
    engine_id: Name
    boot_id: Hex32
    tp: Number
    clock: Seconds
    memory: Name = ""
    key: Name = ""
    registered: Registered | None = None
    on_device: OnDevice | None = None


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The producer's answer to an engine of another layout: the first field that differs."""

    field: Name
    theirs: Text
    mine: Text


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Blocks of one group of layers, from index `first` of the prompt on. hashes: 8 bytes for each,
    little endian, which prove the tokens up to the block's end."""

    group: Number
    first: Number
    hashes: bytes

    def __len__(self) -> int:
        return len(self.hashes) // HASH_BYTES


class Want(msgspec.Struct, frozen=True, tag="want"):
    """Ask for pages, in the order of these runs. first_token: the first whose page is asked for."""

    ticket: Hex32
    boot_id: Hex32
    runs: Annotated[list[Run], Meta(max_length=1024)]
    first_token: Number


class Page(msgspec.Struct, frozen=True, tag="page"):
    """Announce a page of `size` bytes: the one with this number in a want. sum: xxh3-64 of them, or
    the checksum of the devices' kernel if the page is on a device; at: their position in the common
    memory, -1 if they follow the frame."""

    ticket: Hex32
    number: Number
    size: Annotated[int, Meta(ge=0, le=MOST_PAGE_BYTES)]
    sum: Sum
    at: Annotated[int, Meta(ge=-1, le=2**62)] = -1

    @property
    def inline_bytes(self) -> int:
        """Return how many bytes follow the frame."""
        return self.size if self.at < 0 else 0


class Mapped(msgspec.Struct, frozen=True, tag="mapped"):
    """The consumer can read the memory that it was offered."""


class Used(msgspec.Struct, frozen=True, tag="used"):
    """The consumer needs no page before this position of the memory."""

    position: Annotated[int, Meta(ge=0, le=2**62)]


class Have(msgspec.Struct, frozen=True, tag="have"):
    """End the pages of a want. missing: numbers of those that could not be sent."""

    ticket: Hex32
    missing: list[Number]


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The consumer needs the ticket no more: its blocks are free at once."""

    ticket: Hex32


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """The consumer still waits for these."""

    tickets: Annotated[list[Hex32], Meta(max_length=MOST_TICKETS)]


class Gone(msgspec.Struct, frozen=True, tag="gone"):
    """The producer has no such ticket: it expired, was read, or belongs to an earlier process."""

    ticket: Hex32
    reason: Name


Frame = Hello | Welcome | Refused | Want | Page | Have | Done | Renew | Gone | Mapped | Used

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Frame)


def page_frame(ticket: str, number: int, page: PageContent) -> Page:
    """Announce a page, with its checksum."""
    total = page.sum if isinstance(page, DevicePage) else xxhash.xxh3_64_digest(page)
    return Page(ticket, number, len(page), total)


def encode_frame(frame: Frame) -> bytes:
    """Return the length and the body of a frame. Raises `FrameError` if it is too long to send."""
    body = _ENCODER.encode(frame)
    if len(body) > MOST_FRAME_BYTES:
        raise FrameError(
            f"a {type(frame).__name__} of {len(body)} bytes; at most {MOST_FRAME_BYTES} are sent"
        )
    return LENGTH.pack(len(body)) + body


def frame_length(prefix: bytes) -> int:
    """Return the length of the body behind a prefix of 4 bytes. Raises `FrameError`."""
    (length,) = LENGTH.unpack(prefix)
    if not 0 < length <= MOST_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes; 1 to {MOST_FRAME_BYTES} are read")
    return int(length)


def decode_frame(body: bytes) -> Frame:
    """Decode the body of a frame. Raises `FrameError`."""
    try:
        frame: Frame = _DECODER.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise FrameError(f"no frame of this protocol: {error}") from error
    if isinstance(frame, Want) and any(len(run.hashes) % HASH_BYTES for run in frame.runs):
        raise FrameError(f"the hashes of a run are {HASH_BYTES} bytes each")
    return frame
