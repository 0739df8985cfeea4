"""`atom replay` says which part of two answers differs, and asks only what can be repeated."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from atom.entrypoints.cli import main
from atom.entrypoints.replay import differences

PARTS = ["fp_1", "atom-1", "batch_invariant-ab", "float32-float32-tp1-seed0"]


def answer(text: str = "a", **parts: str) -> dict[str, Any]:
    """An answer with other parts of its fingerprint, by their places."""
    own = [parts.get(f"p{place}", part) for place, part in enumerate(PARTS)]
    return {
        "object": "text_completion",
        "system_fingerprint": "/".join(own),
        "choices": [{"index": 0, "text": text}],
    }


@pytest.mark.parametrize(("place", "name"), enumerate(["weights", "engine", "kernels", "options"]))
def test_the_part_of_the_fingerprint_that_differs_is_named(place: int, name: str) -> None:
    (line,) = differences(answer(), answer(**{f"p{place}": "other"}))
    assert line.startswith(f"{name}: ")
    assert "other" in line


def test_tokens_that_differ_under_one_fingerprint_are_named() -> None:
    assert list(differences(answer(), answer())) == []
    (line,) = differences(answer(), answer("b"))
    assert line.startswith("choice 0, text")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"request": {}}, "is no record"),
        ({"request": {"seed": 1}, "response": {"object": "x"}}, "not a stream"),
        ({"request": {}, "response": answer()}, "neither a seed"),
    ],
)
def test_what_cannot_be_repeated_is_refused(
    record: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "record.json"
    file.write_text(json.dumps(record))
    assert main(["replay", str(file)]) == 1
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(("text", "code", "said"), [("a", 0, "equal"), ("b", 1, "choice 0, text")])
def test_a_server_is_asked_again(
    text: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer(text)).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    file = tmp_path / "record.json"
    request = {"prompt": "x", "seed": 1, "stream": False}
    file.write_text(json.dumps({"request": request, "response": answer()}))
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        for end in ("", "/v1", "/v1/"):
            assert main(["replay", str(file), "--base-url", url + end]) == code
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert asked == 3 * [("/v1/completions", request)]
    assert said in capsys.readouterr().out
