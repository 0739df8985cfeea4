"""Callers outside the cluster: what each of their requests was answered, and by which revision.

The pods are of `revision_pods`, which answer with their revision's name.
"""

from __future__ import annotations

import json
import math
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

_THREADS = 3
_PAUSE_SECONDS = 0.01  # between a thread's requests
_PATH = "/v1/models"


@dataclass(frozen=True, slots=True)
class Answer:
    """`by`: the revision that answered, or the words of whoever answered in its place; status 0:
    there was no answer.
    """

    status: int
    by: str
    path: str = ""  # as the pod saw it


def ask(url: str, path: str = _PATH, headers: Mapping[str, str] | None = None) -> Answer:
    request = urllib.request.Request(url + path, headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            status, body = response.status, response.read()
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read()
    except OSError as error:
        return Answer(0, repr(error))
    try:
        return Answer(status, *json.loads(body))
    except (ValueError, TypeError):
        return Answer(status, body.decode(errors="replace"))


def shares(url: str, requests: int) -> Counter[str]:
    """Count who answers so many requests."""
    return Counter(ask(url).by for _ in range(requests))


def likely(requests: int, percent: int, chance: float = 1e-9) -> range:
    """The counts of a share's requests that are not rarer than `chance` on either side."""
    share = percent / 100
    each = [
        math.comb(requests, count) * share**count * (1 - share) ** (requests - count)
        for count in range(requests + 1)
    ]
    least = next(count for count in range(requests) if sum(each[: count + 1]) > chance)
    most = next(count for count in range(requests, 0, -1) if sum(each[count:]) > chance)
    return range(least, most + 1)


@dataclass
class Asked:
    """What the callers have been answered so far."""

    answers: list[Answer] = field(default_factory=list)

    @property
    def failures(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.status != 200]


@contextmanager
def asking(url: str) -> Iterator[Asked]:
    """Ask without pause while the block runs."""
    asked, stop = Asked(), threading.Event()

    def go_on() -> None:
        while not stop.wait(_PAUSE_SECONDS):
            asked.answers.append(ask(url))

    threads = [threading.Thread(target=go_on) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield asked
    finally:
        stop.set()
        for thread in threads:
            thread.join()
