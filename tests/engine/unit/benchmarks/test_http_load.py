"""The benchmarks' reader finds every answer that is not whole."""

from __future__ import annotations

import socket
import threading

import pytest

from benchmarks.http_load import body_of_chunks, load

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
TEXT = b'data: {"choices":[{"text":"a"}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


WHOLE = HEAD + chunk(TEXT) + chunk(TEXT) + chunk(USAGE + DONE) + b"0\r\n\r\n"


def answered_with(answer: bytes, output_tokens: int = 2) -> list[str]:
    """The failures that the reader finds when a server answers so and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                while not connection.recv(1 << 16).endswith(b"{}"):
                    pass
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        try:
            return load(listener.getsockname()[1], ["{}"], [output_tokens]).failures
        finally:
            server.join()


def test_a_whole_answer_is_no_failure() -> None:
    assert answered_with(WHOLE) == []


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", id="status"),
        pytest.param(b"", id="nothing"),
        pytest.param(WHOLE[:-5], id="no last chunk"),
        pytest.param(HEAD + chunk(TEXT) + chunk(USAGE) + b"0\r\n\r\n", id="no end event"),
        pytest.param(HEAD + chunk(TEXT) + chunk(DONE) + b"0\r\n\r\n", id="no usage"),
        pytest.param(WHOLE.replace(b"\r\n0\r\n", b"\r\n1\r\n0\r\n"), id="wrong framing"),
    ],
)
def test_an_answer_that_is_not_whole_is_a_failure(answer: bytes) -> None:
    assert len(answered_with(answer)) == 1


def test_an_answer_of_another_length_is_a_failure() -> None:
    (failure,) = answered_with(WHOLE, output_tokens=3)
    assert failure.startswith("3 tokens wanted")


def test_a_body_is_put_together_from_its_chunks() -> None:
    assert body_of_chunks(WHOLE) == TEXT + TEXT + USAGE + DONE
