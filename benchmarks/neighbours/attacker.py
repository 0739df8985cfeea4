"""The attacking client: a process that keeps a row's requests open, from 127.0.0.1.

    python -m benchmarks.neighbours.attacker ROW PORT SECONDS

Prints "ready" as soon as the requests begin. After SECONDS it prints the number of answers by HTTP
status as one JSON object, closes all connections and ends.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import sys
import threading
import time
from collections import Counter

from benchmarks.neighbours.rows import ROWS, Body, Row, encoded

_TIMEOUT_SECONDS = 120.0
_UNREAD_BYTES = 4096  # the receive buffer of a client that does not read
_AFTER_A_FAILURE_SECONDS = 0.05


class Attack:
    """Sends one row's requests until the process ends. answers: how many ended, by status."""

    def __init__(self, row: Row, port: int) -> None:
        self._row = row
        self._port = port
        self.answers: Counter[str] = Counter()

    def prepare(self) -> None:
        for body in self._row.prepared():
            self._send(body)

    def start(self) -> None:
        for number in range(self._row.connections):
            work = self._repeat if self._row.reads else self._leave_unread
            threading.Thread(target=work, args=(random.Random(number),), daemon=True).start()

    def _repeat(self, draw: random.Random) -> None:
        while True:
            try:
                self._send(self._row.body(draw))
            except (OSError, http.client.HTTPException) as error:
                self.answers[type(error).__name__] += 1
                time.sleep(_AFTER_A_FAILURE_SECONDS)

    def _send(self, body: Body) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_SECONDS)
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", self._row.path, encoded(body), headers)
            answer = connection.getresponse()
            answer.read()
            self.answers[str(answer.status)] += 1
        finally:
            connection.close()

    def _leave_unread(self, draw: random.Random) -> None:
        """Send a request, and again whenever the server has closed the connection."""
        while True:
            with socket.socket() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD_BYTES)
                connection.connect(("127.0.0.1", self._port))
                body = encoded(self._row.body(draw))
                head = f"POST {self._row.path} HTTP/1.1\r\nhost: bench\r\n"
                head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
                self.answers["opened"] += 1
                while not _is_closed(connection):
                    time.sleep(_AFTER_A_FAILURE_SECONDS)


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the server reset the connection, without reading from it."""
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


def main() -> int:
    name, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    attack = Attack(next(row for row in ROWS if row.name == name), port)
    attack.prepare()
    print("ready", flush=True)
    attack.start()
    time.sleep(seconds)
    print(json.dumps(dict(attack.answers)), flush=True)
    os._exit(0)  # the threads wait for answers


if __name__ == "__main__":
    sys.exit(main())
