"""Features of an engine and fields of requests that meet in one server give the answers of a plain
server, or are refused by name; afterwards nothing is held.

Any two features are together in one of the engines, and any two fields of a route in one of the
requests. `make test` runs one engine with most of the features that hold and move KV blocks.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from atom.kv_transfer_config.document import kv_transfer_config
from atom.lora_config import LoraConfig, LoraModule
from atom.speculative_config import SpeculativeConfig
from tests.support.covering_draws import covering_draws
from tests.support.engine_core.front_half import build_test_config
from tests.support.models.lora_adapter import adapt
from tests.support.models.multimodal_checkpoint import make_multimodal_checkpoint
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.drawn_requests import DrawnRequest, covering_requests, said
from tests.support.server.http_app import HttpRig, loads_from, serve_model
from tests.support.server.seeing_model import AGENT_TEMPLATE, IMAGE, write_seeing_tokenizer

TIER = {"kv_offloading_size": 0.01, "kv_offload_min_tokens": 0}
_EXCHANGE = json.dumps({"kv_connector": "AtomConnector", "kv_role": "kv_both"})
FEATURES: dict[str, dict[str, Any]] = {
    "drafts": {"speculative": SpeculativeConfig(num_tokens=3, fewest_matched=1, adaptive=False)},
    "earlier answers": {
        "speculative": SpeculativeConfig(method="suffix", num_tokens=3, adaptive=False)
    },
    "small model": {},  # which drafts; `serve` names it
    "tier": TIER,
    "files": {**TIER, "kv_disk_size": 0.02},
    "few blocks": {"num_kv_blocks": 30},
    "short chunks": {"max_num_batched_tokens": 24},
    "one at a time": {"max_num_seqs": 1},
    "prompts first": {"scheduling_policy": "prefill_first"},
    "no prefix cache": {"enable_prefix_caching": False},
    "large blocks": {"block_size": 32},
    "unfair": {"fairness": "off"},
    "two copies": {"data_parallel_size": 2},
    "two ranks": {"tensor_parallel_size": 2},
    "sleeps": {"enable_sleep_mode": True},
    "deadlines": {"deadline_ms": 100_000_000, "deadline_action": "refuse"},
    "steps in time": {"max_step_seconds": 0.005},
    "reproducible": {"reproducible": True},
    "no images": {"language_model_only": True},
    "pages": {
        "kv_transfer": kv_transfer_config(_EXCHANGE, timeout_seconds=30.0, max_held_fraction=0.5)
    },
}
# A start refuses these, each by name (see tests of the configuration), or has one of them.
APART = [
    {"no prefix cache", "tier"}, {"no prefix cache", "files"}, {"no prefix cache", "pages"},
    {"sleeps", "pages"}, {"small model", "pages"},
    {"drafts", "earlier answers"}, {"drafts", "small model"}, {"earlier answers", "small model"},
]  # fmt: skip
KEY = "key"
BURST, PER_ENGINE = 8, 26
MOVING = ["drafts", "files", "few blocks", "short chunks", "steps in time"]


def may_meet(names: Iterable[str]) -> bool:
    return not any(apart <= set(names) for apart in APART)


ENGINES = [MOVING, *covering_draws(list(FEATURES), 5, random.Random(1), may_meet)]
REQUESTS = covering_requests(seed=1)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True)
class SeeingModel:
    """A checkpoint that reads images, an adapter of it, and a small model that drafts for it."""

    folder: Path
    adapter: Path
    draft: Path

    def serve(self, features: Sequence[str], files: Path) -> Any:
        options: dict[str, Any] = {
            "max_num_batched_tokens": 256, "max_num_seqs": BURST, "max_model_len": 400,
            "num_kv_blocks": 200,
        }  # fmt: skip
        for name in features:
            options |= FEATURES[name]
        if "files" in features:
            options["kv_disk_dir"] = str(files)
        if "small model" in features:
            options["speculative"] = SpeculativeConfig(
                method="draft_model", num_tokens=3, adaptive=False, draft_model=str(self.draft)
            )
        if "reproducible" not in features:
            own = LoraModule(name="own", path=str(self.adapter), folder=str(self.adapter))
            options["lora"] = LoraConfig(modules=(own,), may_load=True, max_cpu_loras=2)
        config = build_test_config(self.folder, **options)
        return serve_model(config, api_key=KEY, access=loads_from(str(self.adapter.parent)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SeeingModel:
    folder = tmp_path_factory.mktemp("seeing")
    tokenizer = write_seeing_tokenizer(folder)
    image, size = tokenizer.token_to_id(IMAGE), tokenizer.get_vocab_size()
    model = make_multimodal_checkpoint(
        folder,
        "mistral3",
        vision={"image_size": 84},
        whole={"image_token_index": image},
        unlikely=(image,),
        vocab_size=size + size % 2,  # for two ranks
        max_position_embeddings=1024,
    )
    write_seeing_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(AGENT_TEMPLATE)
    vision, merge = model.config.vision_config, model.config.spatial_merge_size
    sizes = {"patch_size": vision.patch_size, "spatial_merge_size": merge}
    (folder / "processor_config.json").write_text(json.dumps(sizes))
    longest = {"size": {"longest_edge": vision.image_size}}
    (folder / "preprocessor_config.json").write_text(json.dumps(longest))
    adapter = tmp_path_factory.mktemp("adapters") / "own"
    decoder = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
    adapt(deepcopy(model), adapter, target_modules=decoder)
    draft = tmp_path_factory.mktemp("draft")
    make_tiny_checkpoint(draft, "qwen3", extra={"vocab_size": size + size % 2})
    write_seeing_tokenizer(draft)
    return SeeingModel(folder, adapter, draft)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def plain(model: SeeingModel, tmp_path_factory: Any) -> AsyncIterator[HttpRig]:
    async with model.serve([], tmp_path_factory.mktemp("none")) as rig:
        rig.client.headers["authorization"] = f"Bearer {KEY}"
        yield rig


def is_refused(request: DrawnRequest, features: Sequence[str]) -> bool:
    """Return whether an engine without adapters or images refuses a request."""
    no_images = "no images" in features or "reproducible" in features
    asks_adapter = request.body.get("model") == "own"
    return (no_images and "image" in request.fields) or (
        "reproducible" in features and asks_adapter
    )


async def ask_all(
    rig: HttpRig, requests: Sequence[DrawnRequest], leaving: DrawnRequest
) -> list[tuple[int, Any]]:
    """Return the answer of each request. Beside each burst a client asks, and leaves."""
    found: list[tuple[int, Any]] = []
    for start in range(0, len(requests), BURST):
        gone = asyncio.create_task(said(rig, leaving))
        burst = requests[start : start + BURST]
        found += await asyncio.gather(*(said(rig, request) for request in burst))
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    return found


async def disturb(rig: HttpRig, features: Sequence[str], adapter: Path) -> None:
    """Forget every cached prompt, load the adapter again, and let the engine sleep, if it can."""
    if "reproducible" not in features:
        body = {"lora_name": "own", "lora_path": str(adapter), "load_inplace": True}
        assert (await rig.post("/v1/load_lora_adapter", **body)).status_code == 200
    if "sleeps" in features:
        for path in ("/sleep?level=1", "/wake_up"):
            assert (await rig.post(path)).status_code == 200
    else:
        assert (await rig.post("/reset_prefix_cache")).status_code == 200


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def assert_rests(rig: HttpRig, files: Path) -> None:
    """Nothing runs, waits or holds a block; files are within their bound."""
    await rig.assert_well()
    found = await rig.metrics()
    for name in ("requests_running", "requests_waiting", "kv_cache_blocks_used"):
        assert found[name] == 0, name
    for name in ("kv_offload_checksum_errors_total", "kv_offload_dropped_queue_total"):
        assert found.get(name, 0.0) == 0, name
    assert bytes_of(files) <= FEATURES["files"]["kv_disk_size"] * 2**30


@pytest.mark.parametrize(
    "number",
    [0, *(pytest.param(number, marks=pytest.mark.whole) for number in range(1, len(ENGINES)))],
    ids=lambda number: " and ".join(ENGINES[number]),
)
async def test_answers_are_those_of_a_plain_server(
    model: SeeingModel, plain: HttpRig, number: int, tmp_path: Path
) -> None:
    features, draw = ENGINES[number], random.Random(number)
    first = number * PER_ENGINE % len(REQUESTS)
    asked = [*REQUESTS, *REQUESTS][first : first + (PER_ENGINE if number else BURST)]
    expected = {request.key: await said(plain, request) for request in asked}
    async with model.serve(features, tmp_path) as rig:
        rig.client.headers["authorization"] = f"Bearer {KEY}"
        for _ in range(2):
            draw.shuffle(asked)
            for request, found in zip(asked, await ask_all(rig, asked, asked[0]), strict=True):
                if is_refused(request, features):
                    assert found[0] in (400, 404), (request.key, found)
                else:
                    assert found == expected[request.key], request.key
            await disturb(rig, features, model.adapter)
        await assert_rests(rig, tmp_path)


@pytest.mark.whole
async def test_every_request_is_computed_or_refused_by_name(plain: HttpRig) -> None:
    statuses = [(await said(plain, request))[0] for request in REQUESTS[-BURST:]]
    assert set(statuses) <= {200, 400}
    assert statuses.count(200) > BURST // 2
