"""A router that knows a server by its KV events alone foretells what every prompt finds cached."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from tests.support.engine_core.kv_event_index import KVEventIndex
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.server_process import ServerProcess, server_process
from tests.support.waiting import HANG_SECONDS

RANKS, BLOCK, FEW_BLOCKS = 2, 16, 24


class Router:
    """Reads every rank's events by their replays, and keeps an index of each."""

    def __init__(self, context: zmq.Context[Any], endpoint: str) -> None:
        self.indices = [KVEventIndex() for _ in range(RANKS)]
        self._next = [0] * RANKS
        self._dealers = []
        for rank in range(RANKS):
            dealer = context.socket(zmq.DEALER)
            dealer.linger, dealer.rcvtimeo = 0, int(HANG_SECONDS * 1000)
            dealer.connect(endpoint if rank == 0 else f"{endpoint}_dp{rank}")
            self._dealers.append(dealer)

    def catch_up(self) -> None:
        for rank, dealer in enumerate(self._dealers):
            dealer.send_multipart([b"", self._next[rank].to_bytes(8, "big")])
            while True:
                _, _, number, payload = dealer.recv_multipart()
                if not payload:
                    break
                assert int.from_bytes(number, "big") == self._next[rank], "none is missing"
                self._next[rank] += 1
                _, events, told_rank = msgspec.msgpack.decode(payload)
                assert told_rank == rank
                for event in events:
                    self.indices[rank].take(event)

    def cached(self, rank: int, tokens: list[int]) -> int:
        """Tokens of the prompt that the rank has, all but the last looked at."""
        known = set(self.indices[rank].contents.values())
        count = 0
        while count + BLOCK < len(tokens) and (0, "", *tokens[: count + BLOCK]) in known:
            count += BLOCK
        return count

    def close(self) -> None:
        for dealer in self._dealers:
            dealer.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, str]]:
    folder = tmp_path_factory.mktemp("events")
    model = make_tiny_checkpoint(folder / "llama", "llama", max_position_embeddings=512)
    replay = f"ipc://{folder}/r"
    asked = {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{folder}/l",
        "replay_endpoint": replay,
        "topic": "kv@pod@tiny",
    }
    flags = ["--kv-events-config", json.dumps(asked), "--data-parallel-size", str(RANKS)]
    flags += ["--block-size", str(BLOCK), "--num-kv-blocks", str(FEW_BLOCKS)]
    flags += ["--max-model-len", "256", "--max-num-seqs", "4"]
    with server_process(model, folder / "log", *flags) as server:
        yield server.wait_ready(), replay


def test_a_router_foretells_every_hit(served: tuple[ServerProcess, str]) -> None:
    server, endpoint = served
    draw = random.Random(11)
    beginnings = [[draw.randrange(1, 200) for _ in range(64)] for _ in range(6)]
    hits = 0
    with zmq.Context() as context:
        router = Router(context, endpoint)
        for _ in range(60):  # more than the blocks hold: old beginnings are evicted
            tokens = draw.choice(beginnings)[: draw.choice((32, 48, 64))]
            tokens = [*tokens, *(draw.randrange(1, 200) for _ in range(draw.randrange(1, 40)))]
            router.catch_up()
            foretold = [router.cached(rank, tokens) for rank in range(RANKS)]
            answer = server.post(
                "/v1/completions", prompt=tokens, max_tokens=4, ignore_eos=True, temperature=0
            ).raise_for_status()
            found = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert found in foretold
            hits += found > 0
        assert 10 < hits < 60
        router.close()


def test_the_size_of_the_cache_is_a_metric(served: tuple[ServerProcess, str]) -> None:
    text = served[0].get("/metrics").raise_for_status().text
    wanted = f'block_size="{BLOCK}",model_name="tiny",num_gpu_blocks="{FEW_BLOCKS}"'
    assert f"atom:cache_config_info{{{wanted}}} 1.0" in text


def test_a_document_that_cannot_be_is_one_error_before_anything_starts(tmp_path: Path) -> None:
    model = make_tiny_checkpoint(tmp_path / "m", "llama")
    document = '{"enable_kv_cache_events": true}'
    flags = ["--kv-events-config", document, "--no-enable-prefix-caching"]
    with server_process(model, tmp_path / "log", *flags) as server:
        assert server.wait_exit() != 0
        assert "kv_events tells of cached blocks, and prefix caching is off" in server.log
