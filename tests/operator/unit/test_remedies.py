"""What does not fit names the changes that are enough, and each of them really is."""

from __future__ import annotations

import re
from typing import Any

from atom_operator.integrations import Site
from tests.support.builders_operator import plan

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


def test_a_larger_tensor_size_is_information_about_a_later_engine() -> None:
    message = verdict(LLAMA_70B, amd(product="MI210")).message
    assert "4 such devices by spec.parallelism.tensor" in message
    assert "which this version does not" in message


def test_the_next_valid_tensor_size_is_named_where_the_engine_can_do_it() -> None:
    site = Site(engine_tensor_parallel=8)
    model, accelerator = {"source": LLAMA_70B}, amd(product="MI210")
    message = plan(site=site, model=model, accelerator=accelerator).capacity.message
    size = int(remedy(message, r"set spec\.parallelism\.tensor to (\d+)"))
    enough = plan(site=site, model=model, accelerator=accelerator, parallelism={"tensor": size})
    assert (size, enough.capacity.fits) == (4, "True")
    less = plan(site=site, model=model, accelerator=accelerator, parallelism={"tensor": size // 2})
    assert less.capacity.fits == "False"


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
