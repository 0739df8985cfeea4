"""Frames between engines: what is written is read, and anything else ends a connection."""

from __future__ import annotations

import random

import msgspec
import pytest

from atom.model_engine.kv_transfer.frames import (
    LENGTH,
    MOST_FRAME_BYTES,
    Done,
    Frame,
    FrameError,
    Gone,
    Have,
    Hello,
    Page,
    Refused,
    Renew,
    Run,
    Want,
    Welcome,
    decode_frame,
    encode_frame,
    frame_length,
)
from atom.model_engine.kv_transfer.greeting import Greeting

_TICKET, _BOOT = "0" * 31 + "a", "b" * 32
_FRAMES: list[Frame] = [
    Hello(1, _TICKET, {"dtype": "fp32"}, "engine", ["tcp"], 1.5),
    Welcome("tcp", "engine", _BOOT, 1, 2.5),
    Refused("dtype", "fp32", "bf16"),
    Want(_TICKET, _BOOT, [Run(0, 3, b"12345678" * 5), Run(1, 6, b"12345678")], 48),
    Page(_TICKET, 4, 4096, b"87654321"),
    Have(_TICKET, [1, 2]),
    Done(_TICKET),
    Renew([_TICKET, _BOOT]),
    Gone(_TICKET, "expired"),
]


@pytest.mark.parametrize("frame", _FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_is_read_as_it_was_written(frame: Frame) -> None:
    data = encode_frame(frame)
    assert frame_length(data[: LENGTH.size]) == len(data) - LENGTH.size
    assert decode_frame(data[LENGTH.size :]) == frame


@pytest.mark.parametrize("seed", range(40))
def test_damaged_frames_are_errors_or_frames_and_nothing_else(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(50):
        body = bytearray(encode_frame(dice.choice(_FRAMES))[LENGTH.size :])
        for _ in range(dice.randrange(1, 5)):
            change = dice.randrange(3)
            at = dice.randrange(len(body)) if body else 0
            if change == 0 and body:
                body[at] = dice.randrange(256)
            elif change == 1:
                del body[at : at + dice.randrange(1, 9)]
            else:
                body[at:at] = dice.randbytes(dice.randrange(1, 9))
        try:
            frame = decode_frame(bytes(body))
        except FrameError:
            continue
        assert type(frame) in {type(each) for each in _FRAMES}


@pytest.mark.parametrize(
    "body",
    [
        {"type": "done", "ticket": "short"},
        {"type": "done", "ticket": "G" * 32},
        {"type": "done"},
        {"type": "other", "ticket": _TICKET},
        {"type": "page", "ticket": _TICKET, "number": -1, "size": 1, "sum": b"12345678"},
        {"type": "page", "ticket": _TICKET, "number": 0, "size": 2**31, "sum": b"12345678"},
        {"type": "page", "ticket": _TICKET, "number": 0, "size": 1, "sum": b"1234"},
        {"type": "want", "ticket": _TICKET, "boot_id": _BOOT, "runs": [[0, 0, b"123"]],
         "first_token": 0},
        {"type": "renew", "tickets": [_TICKET] * 5000},
        [1, 2, 3],
        "text",
    ],
)  # fmt: skip
def test_values_out_of_their_bounds_are_refused(body: object) -> None:
    with pytest.raises(FrameError):
        decode_frame(msgspec.msgpack.encode(body))


@pytest.mark.parametrize("length", [0, MOST_FRAME_BYTES + 1, 2**32 - 1])
def test_a_length_out_of_bounds_is_refused_before_anything_is_read(length: int) -> None:
    with pytest.raises(FrameError):
        frame_length(LENGTH.pack(length))


def test_a_frame_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(FrameError):
        encode_frame(Want(_TICKET, _BOOT, [Run(0, 0, bytes(MOST_FRAME_BYTES))], 0))


_FACTS = {"architecture": "A", "dtype": "fp32", "block_size": "16", "groups": "causal:0"}


@pytest.mark.parametrize("name", [*_FACTS, "more"])
def test_a_refusal_names_the_field_that_differs(name: str) -> None:
    ours = Greeting("ours", _BOOT, "1" * 32, _FACTS, 1)
    theirs = Greeting("theirs", _BOOT, "2" * 32, {**_FACTS, name: "other"}, 1)
    answer = ours.answer(theirs.hello(0.0), 0.0)
    assert isinstance(answer, Refused)
    assert answer == Refused(name, "other", _FACTS.get(name, "absent"))


def test_engines_of_one_layout_agree_on_a_transport() -> None:
    greeting = Greeting("one", _BOOT, "1" * 32, _FACTS, 2)
    hello = greeting.hello(0.0)
    assert greeting.answer(hello, 3.0) == Welcome("tcp", "one", _BOOT, 2, 3.0)
    near = Greeting("one", _BOOT, "1" * 32, _FACTS, 2, host="here")
    transports = [
        answer.transport
        for theirs, offers in ((near, ["shm"]), (near, []), (greeting, ["shm"]))
        if isinstance(answer := near.answer(theirs.hello(0.0), 0.0, offers=offers), Welcome)
    ]
    assert transports == ["shm", "tcp", "tcp"]
    for changed, field in (({"protocol": 2}, "protocol"), ({"transports": ["x"]}, "transports")):
        answer = greeting.answer(msgspec.structs.replace(hello, **changed), 0.0)
        assert isinstance(answer, Refused)
        assert answer.field == field
