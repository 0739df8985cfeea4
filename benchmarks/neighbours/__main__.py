"""What one client's requests do to another client's answers.

    python -m benchmarks.neighbours [--rows crowd n128 …] [--seconds 10] [MODEL]

A real `atom serve` on the CPU, by default of examples/models/atom-tiny, and for rows with pictures
of examples/models/atom-tiny-eyes. The attacking client sends
from 127.0.0.1, the other one from 127.0.0.2, so that the server tells them apart by address. For
each row the other client asks for short answers, one after another, beside one long stream; the
table has its time to the first token (median, relative to the idle server, and longest) and the
longest gap of its stream, with the goals. The last line is one JSON object. The exit code is 0 even
if a goal is missed. The machine is shared by server and clients: figures compare rows, not hosts.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.engines.server_process import end, started_server
from benchmarks.neighbours.rows import (
    ROWS,
    Row,
    Verdict,
    Victim,
    completion,
    encoded,
    verdict_of,
)

_MODELS = Path(__file__).resolve().parents[2] / "examples" / "models"
_MODEL = _MODELS / "atom-tiny"
_OPTIONS: dict[str, Any] = {"device": "cpu"}
_VICTIM = ("127.0.0.2", 0)
_TIMEOUT_SECONDS = 60.0
_PAUSE_SECONDS = 0.05  # between two short requests
_LONG_ANSWER_TOKENS = 900
_CALM_SECONDS = 60.0  # the server may take so long to finish what a row left
_PREPARE_SECONDS = 120.0


class Streams:
    """The other client's requests. seconds: how long it asks."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._draw = random.Random(seed)
        self.first_tokens: list[float] = []
        self.gap = 0.0
        self._ends = 0.0

    def measure(self, seconds: float) -> Victim:
        """Ask for `seconds`, and until the last short answer's first token."""
        self._ends = time.monotonic() + seconds
        beside = threading.Thread(target=self._stream_long)
        beside.start()
        while not self.first_tokens or time.monotonic() < self._ends:
            self.first_tokens.append(self.first_token())
            time.sleep(_PAUSE_SECONDS)
        beside.join()
        return Victim(tuple(self.first_tokens), self.gap)

    def first_token(self) -> float:
        """Seconds to the first token of a short answer; the time-out if none came."""
        begun = time.monotonic()
        try:
            connection, answer = self._ask(4)
        except OSError:
            return time.monotonic() - begun
        try:
            _piece(answer)
            taken = time.monotonic() - begun
            while _piece(answer):
                pass
            return taken
        except OSError:
            return time.monotonic() - begun
        finally:
            connection.close()

    def _stream_long(self) -> None:
        while time.monotonic() < self._ends:
            try:
                connection, answer = self._ask(_LONG_ANSWER_TOKENS)
                last = time.monotonic() if _piece(answer) else None
                while last is not None and last < self._ends and _piece(answer):
                    now = time.monotonic()
                    self.gap, last = max(self.gap, now - last), now
                connection.close()
            except OSError:
                self.gap = max(self.gap, _TIMEOUT_SECONDS)

    def _ask(self, max_tokens: int) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._port, timeout=_TIMEOUT_SECONDS, source_address=_VICTIM
        )
        body = completion(self._draw, prompt_tokens=20, max_tokens=max_tokens, stream=True)
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/completions", encoded(body), headers)
        return connection, connection.getresponse()


def _piece(answer: http.client.HTTPResponse) -> bool:
    """Read up to the next piece with text; False at the stream's end."""
    while line := answer.readline():
        if b'"text":' in line:
            return True
    return False


def attacked(row: Row, port: int, seconds: float) -> tuple[Victim, dict[str, int]]:
    """Measure beside the row's attack. Returns the other client's times, and the attacker's answers
    by status."""
    command = [sys.executable, "-m", "benchmarks.neighbours.attacker", row.name, str(port)]
    process = subprocess.Popen([*command, str(seconds)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    limit = threading.Timer(_PREPARE_SECONDS + 2 * seconds, process.kill)
    limit.start()
    try:
        process.stdout.readline()  # "ready"
        seen = Streams(port, seed=1).measure(seconds)
        answers = json.loads(process.stdout.readline() or b"{}")
        return seen, answers
    finally:
        limit.cancel()
        end(process, 5.0)


def wait_calm(port: int, idle: Victim) -> None:
    """Wait until the server is as fast as it was idle, or for _CALM_SECONDS."""
    deadline = time.monotonic() + _CALM_SECONDS
    streams = Streams(port, seed=2)
    while streams.first_token() > 2 * max(idle.first_tokens) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)


def main() -> int:
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", default=_MODEL)
    parser.add_argument("--rows", nargs="+", choices=names, default=names, metavar="ROW",
                        help=f"of: {', '.join(names)}")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=10.0, help="of each row's attack")
    args = parser.parse_args()
    wanted = [row for row in ROWS if row.name in args.rows]
    told: list[dict[str, Any]] = []
    for pictures, model in ((False, args.model), (True, _MODELS / "atom-tiny-eyes")):
        rows = [row for row in wanted if row.pictures is pictures]
        if rows:
            told.append(measured(rows, model, args.seconds))
    print(json.dumps(told[0] if len(told) == 1 else told))
    return 0


def measured(rows: Sequence[Row], model: Path, seconds: float) -> dict[str, Any]:
    """Measure and print rows beside one server."""
    found: dict[str, Any] = {}
    with started_server(model, _OPTIONS, "--disable-access-log") as server:
        Streams(server.port, seed=0).measure(1.0)  # warm
        idle = Streams(server.port, seed=0).measure(seconds / 2)
        first_ms = median(idle.first_tokens) * 1e3
        print(f"{model.name} idle: first token {first_ms:.0f} ms, gap {idle.gap * 1e3:.0f} ms")
        print(HEAD)
        for row in rows:
            seen, answers = attacked(row, server.port, seconds)
            verdict = verdict_of(row, idle, seen)
            print(line_of(verdict), answers, flush=True)
            found[row.name] = {**asdict(verdict), "answers": answers}
            wait_calm(server.port, idle)
    return {"idle": asdict(idle), "rows": found}


HEAD = (
    f"{'row':<22}{'first, ms':>10}{'x idle':>9}{'goal':>6}{'longest':>9}{'gap, ms':>9}{'goal':>6}"
    "  held  the attacker's answers"
)


def line_of(verdict: Verdict) -> str:
    return (
        f"{verdict.name:<22}{verdict.median_ms:>10.0f}{verdict.times_idle:>9.1f}"
        f"{verdict.most_times_idle:>6.0f}{verdict.longest_ms:>9.0f}{verdict.gap_ms:>9.0f}"
        f"{verdict.most_gap_ms:>6.0f}  {'yes' if verdict.held else 'NO':<4}"
    )


if __name__ == "__main__":
    sys.exit(main())
