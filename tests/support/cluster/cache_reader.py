"""What engine pods say that they have cached, read over the cluster's network by llm-d's contract
alone: each pod's events as they come, and its replay from batch 0.

`read` runs this file as a program in that network; each run is a reader that starts anew.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import zmq

from tests.support.cluster.live_cluster import ROOT
from tests.support.engine_core.kv_event_index import KVEventIndex
from tests.support.waiting import HANG_SECONDS

EVENTS, REPLAYS = 5557, 5558  # as llm-d's picker is told them
_TOPICS = "kv@"


@dataclass(frozen=True)
class Told:
    """Of one pod: the topics of its live events and its replay, and the tokens up to each cached
    block's end."""

    topics: tuple[str, str]
    beginnings: tuple[tuple[int, ...], ...]

    def cached(self, tokens: list[int]) -> int:
        """How many of a prompt's first tokens are cached."""
        found = (len(known) for known in self.beginnings if tuple(tokens[: len(known)]) == known)
        return max(found, default=0)


def read(pods: Mapping[str, str], model: str) -> dict[str, Told]:
    """By name, of pods at these addresses."""
    inside = [sys.executable, "-m", "devcluster", "exec", "--"]
    words = [sys.executable, "-m", "tests.support.cluster.cache_reader", model]
    done = subprocess.run(
        [*inside, *words, *pods.values()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * HANG_SECONDS,
        check=True,
    )
    told = json.loads(done.stdout)
    return {
        name: Told((live, replayed), tuple(tuple(tokens) for tokens in beginnings))
        for name, (live, replayed, beginnings) in zip(pods, told, strict=True)
    }


def _read_pod(context: zmq.Context[Any], address: str, model: str) -> tuple[str, str, list[Any]]:
    live = _live_topic(context, address, model)
    replayed, index = _replay(context, address)
    # Group and salt come before the tokens.
    return live, replayed, [each[2:] for each in index.contents.values() if each is not None]


def _live_topic(context: zmq.Context[Any], address: str, model: str) -> str:
    """Of an event that comes while the pod answers; it is asked until a subscription is there."""
    with context.socket(zmq.SUB) as reader:
        reader.subscribe(_TOPICS)
        reader.connect(f"tcp://{address}:{EVENTS}")
        end = time.monotonic() + HANG_SECONDS
        while time.monotonic() < end:
            prompt = f"live {time.monotonic_ns()} " * 8
            body = {"model": model, "prompt": prompt, "max_tokens": 1}
            httpx.post(f"http://{address}:8000/v1/completions", json=body, timeout=HANG_SECONDS)
            if reader.poll(200):
                topic, _, _ = reader.recv_multipart()
                return topic.decode()
    raise TimeoutError(f"{address}:{EVENTS} has said nothing of what it caches")


def _replay(context: zmq.Context[Any], address: str) -> tuple[str, KVEventIndex]:
    index, topics = KVEventIndex(), set()
    with context.socket(zmq.DEALER) as dealer:
        dealer.rcvtimeo = int(HANG_SECONDS * 1000)
        dealer.connect(f"tcp://{address}:{REPLAYS}")
        dealer.send_multipart([b"", (0).to_bytes(8, "big")])
        while (frames := dealer.recv_multipart())[-1]:
            _, topic, _, payload = frames
            topics.add(topic.decode())
            for event in msgspec.msgpack.decode(payload)[1]:
                index.take(event)
    (topic,) = topics
    return topic, index


def main() -> None:
    model, *addresses = sys.argv[1:]
    with zmq.Context() as context:
        context.linger = 0
        print(json.dumps([_read_pod(context, address, model) for address in addresses]))


if __name__ == "__main__":
    main()
