"""The catalogue, the devices, and capacity against hand-computed numbers."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest

from atom_operator.api.v1alpha1.accelerator import ProductName
from atom_operator.plan.accelerators import PRODUCTS
from atom_operator.plan.model_facts import catalogue_sources, facts_from_catalogue
from tests.support.models.parameter_count import parameter_count
from tests.support.operator.builders_operator import plan

GIB = 1024**3

PUBLISHED_PARAMETERS = {
    "hf://Qwen/Qwen3-0.6B": 596_049_920,
    "hf://Qwen/Qwen3-1.7B": 1_720_574_976,
    "hf://Qwen/Qwen3-4B": 4_022_468_096,
    "hf://Qwen/Qwen3-8B": 8_190_735_360,
    "hf://Qwen/Qwen3-14B": 14_768_307_200,
    "hf://Qwen/Qwen3-32B": 32_762_123_264,
    "hf://meta-llama/Llama-3.1-8B": 8_030_261_248,
    "hf://meta-llama/Llama-3.2-1B": 1_235_814_400,
    "hf://meta-llama/Llama-3.2-3B": 3_212_749_824,
    "hf://meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "hf://meta-llama/Llama-3.1-405B": 405_853_388_800,
    "hf://Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "hf://Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "hf://Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "hf://Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "hf://Qwen/Qwen3-Coder-480B-A35B-Instruct": 480_154_875_392,
    "hf://mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "hf://mistralai/Mixtral-8x22B-v0.1": 140_620_634_112,
    "hf://mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "hf://mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "hf://google/gemma-2-27b": 27_227_128_320,
    "hf://google/gemma-3-1b-it": 999_885_952,
    "hf://openai/gpt-oss-20b": 20_914_757_184,
    "hf://openai/gpt-oss-120b": 116_829_156_672,
    "hf://deepseek-ai/DeepSeek-V2-Lite": 15_706_484_224,
    # published with the routers' corrections, one for each expert of each layer
    "hf://deepseek-ai/DeepSeek-V3": 671_026_419_200 - 58 * 256,
}


@pytest.mark.parametrize(("source", "count"), PUBLISHED_PARAMETERS.items())
def test_catalogue_entries_have_their_published_size(source: str, count: int) -> None:
    facts = facts_from_catalogue(source).facts
    assert facts is not None
    assert parameter_count(facts) == count


def test_every_catalogue_entry_is_usable() -> None:
    assert all(facts_from_catalogue(source).facts for source in catalogue_sources())


def test_the_api_offers_exactly_the_products_of_the_table() -> None:
    assert get_args(ProductName) == tuple(product.name for product in PRODUCTS)


def amd_plan(source: str, product: str, **engine: Any) -> Any:
    accelerator = {"type": "amd", "product": product}
    return plan(model={"source": source}, accelerator=accelerator, engine=engine).capacity


def test_capacity_of_qwen3_8b_on_mi300x_by_hand() -> None:
    verdict = amd_plan("hf://Qwen/Qwen3-8B", "MI300X")
    capacity = verdict.capacity
    token_bytes = 2 * 36 * 8 * 128 * 2
    weights = 8_190_735_360 * 2 + 40_960 * 128 * 4  # with cosines and sines of each position
    activations = 16_384 * (3 * 4096 + 3 * 12_288) * 2 + 512 * 151_936 * 4 * 3
    activations += 40_960 * 128 * 2  # and AITER's own, in bfloat16
    runtime = 3 * GIB // 2 + int(192 * GIB * 0.02)
    left = int(192 * GIB * 0.9) - weights - activations - runtime
    assert capacity.weights_bytes == weights
    assert capacity.kv_bytes_per_token == token_bytes
    assert capacity.num_blocks == left // (16 * token_bytes)
    assert capacity.max_sequences == capacity.num_blocks // (40_960 // 16)
    assert capacity.concurrency[0].context_tokens == 1024
    assert "sequences of 40,960 tokens" in verdict.message


def test_everything_is_float32_on_a_cpu() -> None:
    capacity = plan().capacity.capacity
    facts = plan().model.facts
    assert capacity is not None
    assert facts is not None
    tables = 2048 * 32 * 4
    assert capacity.weights_bytes == 4 * parameter_count(facts) + tables
    assert capacity.kv_bytes_per_token == 2 * 2 * 2 * 32 * 4


def test_kv_dtype_fp32_halves_the_tokens() -> None:
    bf16 = amd_plan("hf://Qwen/Qwen3-8B", "MI300X").capacity
    fp32 = amd_plan("hf://Qwen/Qwen3-8B", "MI300X", kvCacheDtype="fp32").capacity
    assert fp32.num_blocks == bf16.num_blocks // 2


def test_memory_in_the_spec_wins_over_the_catalogue() -> None:
    stated = {"type": "amd", "product": "MI300X", "memory": "24Gi"}
    assert plan(accelerator=stated).accelerator.memory_bytes == 24 * GIB
    assert plan(accelerator={"type": "cpu"}).accelerator.memory_bytes == 4 * GIB


@pytest.mark.parametrize(
    ("given", "sequences", "tokens"),
    [
        ({}, 512, 16_384),
        ({"maxNumSeqs": 20_000}, 20_000, 20_000),
        ({"maxNumBatchedTokens": 100}, 100, 100),
    ],
)
def test_a_step_has_room_for_every_sequence_by_default(
    given: dict[str, Any], sequences: int, tokens: int
) -> None:
    engine = plan(engine=given).engine
    assert (engine.scheduler.max_num_seqs, engine.scheduler.max_num_batched_tokens) == (
        sequences,
        tokens,
    )


def test_ranks_on_a_cpu_share_their_pods_memory() -> None:
    cpu = {"type": "cpu", "memory": "8Gi"}
    one = plan(accelerator=cpu).capacity.capacity
    two = plan(accelerator=cpu, parallelism={"tensor": 2}).capacity.capacity
    assert one is not None
    assert two is not None
    assert (one.device.total_bytes, two.device.total_bytes) == (8 * GIB, 4 * GIB)
    assert two.weights_bytes < one.weights_bytes


def test_a_plan_is_made_of_parts_of_few_fields() -> None:
    made = plan()
    parts = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    records = {name: part for name, part in parts.items() if dataclasses.is_dataclass(part)}
    assert set(parts) - set(records) == {"canary"}  # None without one
    assert not {name for name, part in records.items() if len(dataclasses.fields(part)) > 15}
