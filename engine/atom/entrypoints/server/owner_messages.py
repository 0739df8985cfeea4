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
    """Announce that every HTTP process takes requests, so that /health may report it: earlier, a
    client could reach another process on the same port that does not."""


class EngineFailed(msgspec.Struct, frozen=True, tag="engine_failed"):
    """Announce that the engine has failed, with the reason."""

    message: str


class RankLost(msgspec.Struct, frozen=True, tag="rank_lost"):
    """Announce the end of one rank while others continue: finish the open requests, then end."""

    rank: int
    message: str


class ServerLost(msgspec.Struct, frozen=True, tag="server_lost"):
    """Announce the end of another HTTP process: finish the open requests here, then end."""

    message: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Drain and end; at once when it comes again. Not a signal: those may come from others to the
    whole group of processes, and then must not count twice."""


READY = b"ready"  # from an HTTP process: it takes requests
LISTENS = b"listens "  # and ClientPorts: its ports for engine processes of other nodes

OwnerMessage = ModelOpened | AllReady | EngineFailed | RankLost | ServerLost | Stop
_DECODER = msgspec.json.Decoder(OwnerMessage)


def to_line(message: OwnerMessage) -> bytes:
    return msgspec.json.encode(message)


def from_line(line: bytes) -> OwnerMessage:
    message: OwnerMessage = _DECODER.decode(line)
    return message
