"""Whatever comes over HTTP, the server answers, goes on, and keeps nothing behind.

The HTTP application over a real engine process with a tiny model; after each test a normal request
is answered, no request is open and every KV block is free.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import schemathesis
from hypothesis import HealthCheck, given, settings
from prometheus_client.parser import text_string_to_metric_families
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
)

from atom.config import Config, EngineOptions, build_config
from tests.support.cluster.promtool import COLON, metric_problems
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.http_app import HttpRig, serve_model
from tests.support.waiting import HANG_SECONDS, eventually

CONTEXT = 64
# In `make test`; three times as many in `make test-all`, eight times in the long run.
EXAMPLES = {"/v1/chat/completions": 16, "/v1/completions": 16, "/tokenize": 8}
OTHER_EXAMPLES = 2
KEY = "key"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "qwen3"
    return make_tiny_checkpoint(folder, max_position_embeddings=CONTEXT)


def config_of(checkpoint: Path, **options: Any) -> Config:
    defaults = {"served_model_name": "tiny", "device": "cpu", "num_kv_blocks": 400}
    values = {**defaults, "max_num_seqs": 64, "max_waiting_requests": 0, **options}
    return build_config(EngineOptions.of(model=str(checkpoint), **values))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(checkpoint: Path) -> AsyncIterator[HttpRig]:
    async with serve_model(config_of(checkpoint), api_key=KEY) as rig:
        rig.client.headers["authorization"] = f"Bearer {KEY}"
        yield rig


@pytest_asyncio.fixture(loop_scope="module")
async def rig(server: HttpRig) -> AsyncIterator[HttpRig]:
    yield server
    await server.assert_well()


# ---- random requests ----------------------------------------------------------------------------


def is_expected(case: Any, response: Any) -> bool:
    """Answered or refused; a request that gives itself too little time may run out of it."""
    if response.status_code < 500:
        return True
    ran_out = response.status_code == 504 and response.json()["error"]["code"] == "timeout"
    return (
        ran_out
        and isinstance(case.body, dict)
        and not case.body.keys().isdisjoint({"timeout", "timeout_seconds"})
    )


def send_random_requests(url: str, times: int) -> Counter[int]:
    """Requests made from the server's own OpenAPI document; how often each status came."""
    load_all_checks()
    document = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=AUTHORIZED)
    statuses: Counter[int] = Counter()
    for found in document.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=times * EXAMPLES.get(operation.path, OTHER_EXAMPLES),
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            response = case.call(base_url=url, headers=AUTHORIZED, timeout=HANG_SECONDS)
            statuses[response.status_code] += 1
            assert is_expected(case, response), (case.as_curl_command(), response.text)
            case.validate_response(
                response, checks=[response_schema_conformance, content_type_conformance]
            )

        check()
    return statuses


AUTHORIZED = {"authorization": f"Bearer {KEY}"}


@pytest.mark.parametrize(
    "times",
    [1, pytest.param(7, marks=pytest.mark.whole), pytest.param(20, marks=pytest.mark.slow)],
)
async def test_random_requests_are_answered_or_refused_as_documented(
    rig: HttpRig, times: int
) -> None:
    """Requests made from the OpenAPI document, each really answered."""
    statuses = await asyncio.to_thread(send_random_requests, rig.url, times)
    assert statuses[200] > 8 * times, statuses
    assert statuses[400] > 20 * times, statuses


# ---- clients that leave -------------------------------------------------------------------------


async def leave_at_random(port: int, draw: random.Random) -> str:
    """One client that leaves: within its request, before the answer, or somewhere in the answer."""
    body: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "n": draw.choice([1, 1, 3])}
    body["stream"] = draw.random() < 0.7
    if draw.random() < 0.5:
        path, body["prompt"] = "/v1/completions", "ab" * draw.randint(1, 10)
    else:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": "ab"}]
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
    request = head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    where = draw.choice(["in the request", "before the answer", "in the answer"])
    if where == "in the request":
        request = request[: draw.randrange(len(request))]
    writer.write(request)
    await writer.drain()
    if where == "in the answer":
        await reader.read(draw.randint(1, 2000))
    if draw.random() < 0.5:
        writer.transport.abort()  # a reset instead of an orderly end
    writer.close()
    return where


async def test_clients_that_leave_at_random_points_leave_nothing_behind(rig: HttpRig) -> None:
    draw = random.Random(0)
    left = Counter(await asyncio.gather(*(leave_at_random(rig.port, draw) for _ in range(150))))
    assert len(left) == 3
    await eventually(lambda: rig.engine.open_requests == 0, "every request ended")


# ---- lengths ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "max_tokens", "status", "given"),
    [
        (CONTEXT - 2, 1, 200, 1),
        (CONTEXT - 2, 2, 200, 2),
        (CONTEXT - 2, 3, 200, 2),
        (CONTEXT - 1, 5, 200, 1),
        (CONTEXT, 1, 400, 0),
        (CONTEXT + 1, 1, 400, 0),
    ],
)
async def test_prompts_around_the_context_length(
    rig: HttpRig, length: int, max_tokens: int, status: int, given: int
) -> None:
    response = await rig.post(
        "/v1/completions", prompt=[5] * length, max_tokens=max_tokens, ignore_eos=True
    )
    assert response.status_code == status
    if status == 200:
        assert response.json()["usage"]["completion_tokens"] == given
    else:
        assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_a_pool_for_one_sequence_serves_everybody_in_turn(checkpoint: Path) -> None:
    config = config_of(checkpoint, num_kv_blocks=CONTEXT // 16)
    async with serve_model(config) as rig:
        fields = {"prompt": "abc", "max_tokens": 40, "ignore_eos": True, "temperature": 0}
        alone = (await rig.post("/v1/completions", **fields)).json()["choices"][0]["text"]
        asked = [rig.post("/v1/completions", **fields) for _ in range(3)]
        asked.append(rig.post("/v1/completions", **{**fields, "n": 2}))
        for response in await asyncio.gather(*asked):
            assert response.status_code == 200
            assert {choice["text"] for choice in response.json()["choices"]} == {alone}
        await rig.assert_well()


# ---- crowds -------------------------------------------------------------------------------------


async def crowd(url: str, count: int) -> Counter[int]:
    """That many clients at once, each with a connection of its own; how often each status came."""
    body = {"prompt": [7, 8, 9], "max_tokens": 2, "ignore_eos": True, "stream": False}
    limits = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(
        url, connector=limits, timeout=timeout, headers=AUTHORIZED
    ) as session:

        async def ask() -> int:
            async with session.post("/v1/completions", json=body) as response:
                answer = await response.json()
                if response.status == 200:
                    assert answer["usage"]["completion_tokens"] == 2
                if response.status == 429:
                    assert int(response.headers["retry-after"]) > 0
                return response.status

        return Counter(await asyncio.gather(*(ask() for _ in range(count))))


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.whole)])
async def test_no_client_of_a_crowd_is_lost(rig: HttpRig, count: int) -> None:
    """Many more than the engine has rows, all of which connect at once."""
    assert await crowd(rig.url, count) == {200: count}


async def test_promtool_has_nothing_more_to_say_of_scrapes_during_load(rig: HttpRig) -> None:
    await eventually(lambda: rig.engine.stats is not None, "the engine told its numbers")
    before = (await rig.client.get("/metrics")).text
    upstream = ("atom:kv_cache_blocks_total", 'non-counter metrics should not have "_total" suffix')
    loading = asyncio.create_task(crowds(rig.url, 10, 20))
    scrapes = []
    while not loading.done():
        scrapes.append((await rig.client.get("/metrics")).text)
    assert await loading == {200: 200}
    counts = [finished_in(scrape) - finished_in(before) for scrape in scrapes]
    halfway = [scrape for scrape, count in zip(scrapes, counts, strict=True) if 0 < count < 200]
    assert halfway, f"a scrape during the load, not only around it: {counts}"
    for scrape in (scrapes[0], halfway[len(halfway) // 2], scrapes[-1]):
        problems = {problem for problem in metric_problems(scrape) if problem[1] != COLON}
        assert problems == {upstream}


async def crowds(url: str, times: int, count: int) -> Counter[int]:
    """One after the other."""
    total: Counter[int] = Counter()
    for _ in range(times):
        total += await crowd(url, count)
    return total


def finished_in(scrape: str) -> float:
    name = "atom:e2e_request_latency_seconds_count{"
    (line,) = [line for line in scrape.splitlines() if line.startswith(name)]
    return float(line.split()[-1])


async def test_scrapes_during_load_are_whole_and_count_up(rig: HttpRig) -> None:
    def counters(text: str) -> dict[str, float]:
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            if family.type == "counter"
            for sample in family.samples
            if sample.name.endswith("_total") and "finished_reason" not in sample.labels
        }

    await eventually(lambda: rig.engine.stats is not None, "the engine told its numbers")
    before = counters((await rig.client.get("/metrics")).text)
    loading = asyncio.create_task(crowd(rig.url, 200))
    scrapes = [before]
    while not loading.done():
        scrapes.append(counters((await rig.client.get("/metrics")).text))
    assert await loading == {200: 200}
    scrapes.append(counters((await rig.client.get("/metrics")).text))
    for earlier, later in itertools.pairwise(scrapes):
        assert earlier.keys() == later.keys()
        assert all(later[name] >= earlier[name] for name in earlier)


async def test_a_bound_on_the_crowd_sends_some_away_and_serves_the_rest(checkpoint: Path) -> None:
    config = config_of(checkpoint, max_waiting_requests=50)
    async with serve_model(config) as rig:
        statuses = await crowd(rig.url, 200)
        assert set(statuses) == {200, 429}
        assert statuses[200] >= 50
        await rig.assert_well()
