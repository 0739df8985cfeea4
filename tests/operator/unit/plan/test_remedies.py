"""What does not fit names the changes that are enough, and each of them really is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from atom_operator.api.v1alpha1.common import quantity_bytes
from atom_operator.integration_values import Site
from atom_operator.plan import capacity
from tests.support.operator.builders_operator import plan

LLAMA_70B = "hf://meta-llama/Llama-3.3-70B-Instruct"


def verdict(source: str, accelerator: dict[str, Any], **engine: Any) -> Any:
    return plan(model={"source": source}, accelerator=accelerator, engine=engine).capacity


def amd(**accelerator: Any) -> dict[str, Any]:
    return {"type": "amd", **accelerator}


def remedy(message: str, pattern: str) -> str:
    found = re.search(pattern, message)
    assert found is not None, message
    return found.group(1)


def test_the_smallest_product_that_holds_it_is_named_and_holds_it() -> None:
    message = verdict(LLAMA_70B, amd(product="MI210")).message
    assert "To fit: set spec.accelerator.product to MI325X (256 GiB)" in message
    assert verdict(LLAMA_70B, amd(product="MI325X")).fits == "True"
    assert verdict(LLAMA_70B, amd(product="MI300X")).fits == "False"


def test_the_memory_of_a_node_is_found_within_a_few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """An admission review waits for it, and steps of 256 MiB up to a terabyte are thousands."""
    computed: list[int] = []
    compute = capacity._capacity

    def counted(facts: Any, options: Any, accelerator: Any, correction: Any) -> Any:
        computed.append(accelerator.memory_bytes)
        return compute(facts, options, accelerator, correction)

    monkeypatch.setattr(capacity, "_capacity", counted)
    source, cpu = LLAMA_70B, {"type": "cpu", "memory": "32Gi"}
    found = remedy(verdict(source, cpu).message, r"accelerator\.memory to at least (\w+)")
    assert len(computed) < 30
    assert verdict(source, {**cpu, "memory": found}).fits == "True"
    less = quantity_bytes(found) - 256 * 1024**2
    assert verdict(source, {**cpu, "memory": str(less)}).fits == "False"


def test_a_larger_tensor_size_is_information_where_a_sites_engines_do_not_reach_it() -> None:
    model, site = {"source": LLAMA_70B}, Site(engine_tensor_parallel=2)
    message = plan(site=site, model=model, accelerator=amd(product="MI210")).capacity.message
    assert "4 such devices by spec.parallelism.tensor" in message
    assert "that divide a model over more than 2" in message


def test_the_next_valid_tensor_size_is_named_where_the_engine_can_do_it() -> None:
    model, accelerator = {"source": LLAMA_70B}, amd(product="MI210")
    message = plan(model=model, accelerator=accelerator).capacity.message
    size = int(remedy(message, r"set spec\.parallelism\.tensor to (\d+)"))
    enough = plan(model=model, accelerator=accelerator, parallelism={"tensor": size})
    assert (size, enough.capacity.fits) == (4, "True")
    less = plan(model=model, accelerator=accelerator, parallelism={"tensor": size // 2})
    assert less.capacity.fits == "False"


def test_the_next_valid_size_over_the_nodes_that_there_are_is_named_and_is_enough() -> None:
    """It is over all nodes: what a site's engines can do of each is counted so."""

    def on_two_nodes(tensor: int) -> Any:
        return plan(
            Site(engine_tensor_parallel=8),
            model={"source": "hf://deepseek-ai/DeepSeek-R1"},
            accelerator=amd(memory="64Gi"),
            parallelism={"tensor": tensor, "nodes": 2, "expert": True},
            engine={"maxModelLen": 8192},
        ).capacity

    message = on_two_nodes(8).message
    size = int(remedy(message, r"set spec\.parallelism\.tensor to (\d+)"))
    assert (size, on_two_nodes(size).fits) == (16, "True")


def test_more_ranks_that_share_the_experts_are_named_and_are_enough() -> None:
    def of_ranks(number: int) -> Any:
        return plan(
            model={"source": "hf://deepseek-ai/DeepSeek-R1"},
            accelerator=amd(memory="96Gi"),
            parallelism={"data": number, "nodes": 2, "expert": True},
            engine={"maxModelLen": 8192, "maxNumBatchedTokens": 1024},
        ).capacity

    message = of_ranks(4).message
    size = int(remedy(message, r"set spec\.parallelism\.data to (\d+)"))
    assert (size, of_ranks(size).fits, of_ranks(size // 2).fits) == (16, "True", "False")
    assert "spec.parallelism.tensor" not in message


def test_the_longest_context_in_the_message_fits_and_no_longer_one() -> None:
    source, accelerator = "hf://meta-llama/Llama-3.1-8B", amd(memory="24Gi")
    message = verdict(source, accelerator).message
    length = int(remedy(message, r"maxModelLen to at most (\d+)"))
    assert verdict(source, accelerator, maxModelLen=length).fits == "True"
    assert verdict(source, accelerator, maxModelLen=length + 16).fits == "False"


def test_a_higher_utilization_is_named_when_it_is_enough() -> None:
    source = "hf://Qwen/Qwen3-8B"
    accelerator, engine = amd(memory="24Gi"), {"maxModelLen": 4096, "gpuMemoryUtilization": 0.8}
    first = verdict(source, accelerator, **engine)
    assert first.fits == "False"
    share = float(remedy(first.message, r"gpuMemoryUtilization to at least ([\d.]+)"))
    enough = verdict(source, accelerator, **{**engine, "gpuMemoryUtilization": share})
    less = verdict(source, accelerator, **{**engine, "gpuMemoryUtilization": share - 0.01})
    assert (enough.fits, less.fits) == ("True", "False")


def test_fewer_tokens_per_step_are_named_when_they_are_enough() -> None:
    source, accelerator = "hf://Qwen/Qwen3-8B", amd(memory="24Gi")
    engine = {"maxModelLen": 2048, "maxNumBatchedTokens": 65_536}
    first = verdict(source, accelerator, **engine)
    assert first.fits == "False"
    tokens = int(remedy(first.message, r"maxNumBatchedTokens to at most (\d+)"))
    assert verdict(source, accelerator, maxModelLen=2048, maxNumBatchedTokens=tokens).fits == "True"


def test_fewer_drafts_are_named_when_they_are_enough_and_none_when_only_that_is() -> None:
    source = "hf://meta-llama/Llama-3.1-8B"

    def drafting(memory: str, **speculative: Any) -> Any:
        engine = {"maxModelLen": 2048, "speculative": {"method": "ngram", **speculative}}
        return verdict(source, amd(memory=memory), **engine)

    message = drafting("26Gi", tokens=8).message
    tokens = int(remedy(message, r"set spec\.engine\.speculative\.tokens to at most (\d+)"))
    assert (tokens > 0, drafting("26Gi", tokens=tokens).fits) == (True, "True")
    assert drafting("26Gi", tokens=tokens + 1).fits == "False"
    message = drafting("22Gi", tokens=8).message
    assert "leave out spec.engine.speculative;" in message
    assert drafting("22Gi", tokens=1).fits == "False"
    assert verdict(source, amd(memory="22Gi"), maxModelLen=2048).fits == "True"


def test_on_a_cpu_the_memory_that_is_enough_is_named() -> None:
    source, engine = "hf://Qwen/Qwen3-0.6B", {"maxModelLen": 4096}
    message = verdict(source, {"type": "cpu", "memory": "2Gi"}, **engine).message
    assert "product" not in message
    memory = remedy(message, r"spec\.accelerator\.memory to at least (\w+)")
    assert verdict(source, {"type": "cpu", "memory": memory}, **engine).fits == "True"


def test_a_partition_that_shares_its_memory_says_what_idle_neighbours_would_give() -> None:
    source, shared = (
        "hf://Qwen/Qwen3-32B",
        {"product": "MI300X", "resourceName": "amd.com/qpx_nps1"},
    )
    message = verdict(source, amd(**shared)).message
    memory = remedy(message, r"set spec\.accelerator\.memory to (\w+)")
    assert memory == "192Gi"
    assert verdict(source, amd(**shared, memory=memory)).fits == "True"
    apart = verdict(source, amd(product="MI300X", resourceName="amd.com/qpx_nps4"))
    assert apart.fits == "False"
    assert "idle" not in apart.message


def test_an_fp8_cache_is_named_where_it_is_enough() -> None:
    changes: dict[str, Any] = {
        "model": {"source": "hf://Qwen/Qwen3-32B"},
        "accelerator": amd(memory="76Gi"),
        "engine": {"maxModelLen": 16_384, "maxNumSeqs": 64, "maxNumBatchedTokens": 8192},
    }
    assert "set spec.engine.kvCacheDtype to fp8;" in plan(**changes).capacity.message
    changes["engine"]["kvCacheDtype"] = "fp8"
    assert plan(**changes).capacity.fits == "True"


def test_a_cache_of_wide_elements_is_narrowed_first() -> None:
    source, accelerator = "hf://Qwen/Qwen3-8B", amd(memory="30Gi")
    engine = {"maxModelLen": 32_768, "kvCacheDtype": "fp32"}
    first = verdict(source, accelerator, **engine)
    assert "set spec.engine.kvCacheDtype to bf16" in first.message
    assert verdict(source, accelerator, maxModelLen=32_768, kvCacheDtype="bf16").fits == "True"


def test_an_fp8_checkpoint_is_named_where_it_is_enough() -> None:
    source, accelerator = "hf://Qwen/Qwen3-32B", amd(memory="64Gi")
    message = verdict(source, accelerator, maxModelLen=8192).message
    assert message.endswith("or take an fp8 checkpoint of the model")
    site = Site(engine_architectures=("Qwen3ForCausalLM",))
    model = {"source": "hf://Qwen/Qwen3-32B-FP8"}
    half = plan(site, model=model, accelerator=accelerator, engine={"maxModelLen": 8192})
    assert half.capacity.fits == "True"


LATENT_SITE = Site(engine_tensor_parallel=8, engine_architectures=("DeepseekV2ForCausalLM",))


def latent(memory: str, tensor: int, length: int) -> Any:
    return plan(
        LATENT_SITE,
        model={"source": "hf://deepseek-ai/DeepSeek-V2-Lite"},
        accelerator=amd(memory=memory),
        parallelism={"tensor": tensor},
        engine={"maxModelLen": length, "maxNumSeqs": 8, "maxNumBatchedTokens": 2048},
    ).capacity


def test_more_devices_are_no_remedy_for_a_cache_that_each_holds_whole() -> None:
    # 163840 x 27 x 576 x 2 bytes = 4.7 GiB stay what they are on 8 devices, where KV heads would
    # have been divided once more.
    verdict = latent("11Gi", 4, 163_840)
    assert verdict.reason.value == "ContextDoesNotFit"
    assert "spec.parallelism.tensor" not in verdict.message
    # A fourth of an expert is 352 wide: no whole number of an fp8 checkpoint's blocks of 128.
    assert "fp8 checkpoint" not in verdict.message
    assert latent("11Gi", 8, 163_840).reason.value == "ContextDoesNotFit"


def test_more_devices_that_only_divide_the_weights_are_named_as_such() -> None:
    message = latent("36Gi", 1, 163_840).message
    assert (
        "set spec.parallelism.tensor to 2: the weights are divided, each device holds the whole "
        "MLA cache" in message
    )
    assert latent("36Gi", 2, 163_840).fits == "True"


def test_the_longest_context_of_a_hybrid_fits_and_no_longer_one() -> None:
    site = Site(engine_architectures=("Gemma2ForCausalLM",))

    def gemma(length: int) -> Any:
        return plan(
            site,
            model={"source": "hf://google/gemma-2-9b"},
            accelerator=amd(memory="27Gi"),
            engine={"maxModelLen": length},
        ).capacity

    length = int(remedy(gemma(8192).message, r"maxModelLen to at most (\d+)"))
    assert length > 4096, "beyond the window only half of the layers grow"
    assert gemma(length).fits == "True"
    assert gemma(length + 16).fits == "False"
