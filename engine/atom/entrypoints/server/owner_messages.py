"""Messages from the owner of several HTTP processes to them, one JSON line each on standard input;
and their two replies, on standard output."""

from __future__ import annotations

import msgspec


class ModelOpened(msgspec.Struct, frozen=True, tag="model_opened"):
    """The model is open, and the engine will be reached in `folder`. config: of the engine, in its
    own JSON."""

    config: msgspec.Raw
    folder: str


class AllReady(msgspec.Struct, frozen=True, tag="all_ready"):
    """Every HTTP process takes requests, so /health may say so: a client that it told earlier
    could reach another process on the same port that does not."""


class EngineFailed(msgspec.Struct, frozen=True, tag="engine_failed"):
    """Nothing can be served any more, for this reason."""

    message: str


class RankLost(msgspec.Struct, frozen=True, tag="rank_lost"):
    """A rank of the engine has ended, and others serve on: finish what they serve, then end."""

    rank: int
    message: str


class ServerLost(msgspec.Struct, frozen=True, tag="server_lost"):
    """Tells that another HTTP process has ended: finish what is open here, then end."""

    message: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Drain and end; at once when it comes again. Not a signal: those may come from others to the
    whole group of processes, and then must not count twice."""


READY = b"ready"  # from an HTTP process: it takes requests
LISTENS = b"listens "  # and ClientPorts: where it listens to engine processes of other nodes

OwnerMessage = ModelOpened | AllReady | EngineFailed | RankLost | ServerLost | Stop
_DECODER = msgspec.json.Decoder(OwnerMessage)


def to_line(message: OwnerMessage) -> bytes:
    return msgspec.json.encode(message)


def from_line(line: bytes) -> OwnerMessage:
    message: OwnerMessage = _DECODER.decode(line)
    return message
